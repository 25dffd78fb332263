#pragma once
/// Drives one core: opens and ends sessions, brings messages, moves time, and hands out what the
/// core sent.

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "actors/common/settings.hpp"
#include "fake_context.hpp"

namespace eldr::actors::test {

/// A message as its receiver sees it.
class test_frame final : public messages::frame {
 public:
  test_frame(messages::session_id session, messages::outgoing_ptr message)
      : session_(session), message_(std::move(message)), bytes_(message_->bytes()) {}
  wire::Message::Reader root() const override { return message_->root().asReader(); }
  std::size_t bytes() const noexcept override { return bytes_; }
  std::uint64_t session() const noexcept override { return session_; }

 private:
  messages::session_id session_;
  messages::outgoing_ptr message_;
  std::size_t bytes_;
};

/// An attempt at a request of `gateway`.
inline attempt_key attempt(const peer_ptr& gateway, std::uint64_t counter,
                           std::uint32_t number = 1) {
  return {{gateway->id.incarnation, counter}, number};
}

class actor_bench {
 public:
  explicit actor_bench(messages::identity self) : ctx(std::move(self)) {}

  /// Sessions opened before this are not told to the core.
  void run(std::unique_ptr<core> code) {
    core_ = std::move(code);
    core_->start(ctx);
  }

  /// Opens a session. Each has an incarnation of its own.
  peer_ptr up(messages::identity id) {
    auto p = std::make_shared<messages::peer>();
    p->session = next_session_++;
    p->id = std::move(id);
    if (p->id.incarnation == 0) {
      p->id.incarnation = 1000 + p->session;
    }
    ctx.net.open.insert(p->session);
    put(peer_up{p});
    return p;
  }
  peer_ptr up(const std::string& node, const std::string& role) {
    return up({node, role, 0, fingerprint, layout, node + ":1"});
  }
  void down(const peer_ptr& peer) {
    ctx.net.open.erase(peer->session);
    put(peer_down{peer, messages::end_reason::closed_by_peer, {}});
  }
  void receive(const peer_ptr& from, messages::outgoing_ptr message) {
    put(incoming{std::make_shared<test_frame>(from->session, std::move(message)), from});
  }
  void put(event e) {
    if (core_ && !ctx.ended) {
      core_->handle(ctx, e);
    }
  }
  /// Brings what has come to the core's own mailbox.
  void pump() {
    while (!ctx.mail->events.empty()) {
      auto e = std::move(ctx.mail->events.front());
      ctx.mail->events.pop_front();
      put(std::move(e));
    }
  }

  /// Time passes and wakes come when they are due.
  void advance_ms(std::int64_t ms) {
    const auto until = ctx.time_ns + ms_to_ns(ms);
    while (ctx.wake_ns && *ctx.wake_ns <= until) {
      ctx.time_ns = std::max(ctx.time_ns, *ctx.wake_ns);
      ctx.wake_ns.reset();
      put(wake{});
    }
    ctx.time_ns = until;
  }
  /// Time passes and no timer fires, as in a process that was frozen.
  void freeze_ms(std::int64_t ms) { ctx.time_ns += ms_to_ns(ms); }

  /// Messages of a kind that were sent since the last look, in order.
  std::vector<const sent_message*> take(wire::Message::Which kind) {
    std::vector<const sent_message*> out;
    for (auto& m : ctx.net.sent) {
      if (!m.taken && m.root().which() == kind) {
        m.taken = true;
        out.push_back(&m);
      }
    }
    return out;
  }
  /// The one message of a kind; its absence ends the test.
  const sent_message& take_one(wire::Message::Which kind) {
    const auto found = take(kind);
    if (found.size() != 1) {
      throw std::runtime_error("expected one message of kind " +
                               std::to_string(static_cast<int>(kind)) + ", sent were " +
                               std::to_string(found.size()));
    }
    return *found.front();
  }
  /// Kinds of all messages not yet looked at, in order; takes them.
  std::vector<wire::Message::Which> take_kinds() {
    std::vector<wire::Message::Which> out;
    for (auto& m : ctx.net.sent) {
      if (!std::exchange(m.taken, true)) {
        out.push_back(m.root().which());
      }
    }
    return out;
  }

  /// A count that the core tells of itself.
  std::int64_t count(const std::string& name) {
    auto reply = std::make_shared<captured_mailbox>();
    put(describe{1, reply});
    for (const auto& [key, value] : std::get<described>(reply->events.at(0)).counts) {
      if (key == name) {
        return value;
      }
    }
    throw std::runtime_error("no count is called " + name);
  }

  static constexpr std::uint64_t fingerprint = 7;
  static constexpr std::uint64_t layout = 9;
  fake_context ctx;

 private:
  std::unique_ptr<core> core_;
  messages::session_id next_session_ = 1;
};

}  // namespace eldr::actors::test
