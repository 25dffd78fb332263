#pragma once
/// Nodes under test, the same for each transport: who they are, what they saw, and time.

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "messages/memory_network.hpp"
#include "messages/transport.hpp"

namespace eldr::messages::test {

/// A bulk message that carries `ticket` and `extra` more words.
inline outgoing_ptr bulk(std::uint64_t ticket, std::uint32_t extra_words = 0,
                         std::uint32_t first_segment_words = 0) {
  auto message =
      std::make_unique<outgoing>(first_segment_words == 0 ? extra_words + 64 : first_segment_words);
  auto submit = message->root().initSubmit();
  submit.initAttempt().initRequest().setCounter(ticket);
  auto tokens = submit.initTokens(extra_words * 2);
  for (std::uint32_t i = 0; i < tokens.size(); ++i) {
    tokens.set(i, static_cast<std::uint32_t>(ticket * 31 + i));
  }
  return message;
}

inline outgoing_ptr reserved(std::uint64_t tick) {
  auto message = std::make_unique<outgoing>();
  message->root().initHeartbeat().setTick(tick);
  return message;
}

/// The number that bulk() or reserved() was given.
inline std::uint64_t number_of(wire::Message::Reader message) {
  if (message.isHeartbeat()) {
    return message.getHeartbeat().getTick();
  }
  return message.isSubmit() ? message.getSubmit().getAttempt().getRequest().getCounter() : 0;
}

/// Writes down what a transport tells, and whether it keeps to the order of events.
class recorder final : public transport_events {
  template <typename F>
  auto locked(F&& body) const {
    const std::lock_guard lock(mutex_);
    return body();
  }

 public:
  struct arrival {
    session_id session;
    bool bulk;
    std::uint64_t number;
    std::size_t bytes;
  };
  struct end {
    peer who;
    end_reason reason;
    std::string detail;
  };

  /// Keep frames instead of letting them go.
  void hold(bool on) {
    locked([&] { holding_ = on; });
  }
  std::vector<frame_ptr> release() {
    return locked([&] { return std::exchange(held_, {}); });
  }
  /// Runs within received(), after the frame was written down.
  void on_frame(std::function<void(const frame_ptr&)> hook) {
    locked([&] { hook_ = std::move(hook); });
  }

  std::vector<peer> opens() const {
    return locked([&] { return opened_; });
  }
  std::vector<end> ends() const {
    return locked([&] { return ended_; });
  }
  std::vector<arrival> arrivals() const {
    return locked([&] { return arrived_; });
  }
  std::vector<std::string> dial_errors() const {
    return locked([&] { return dial_errors_; });
  }
  std::size_t count() const {
    return locked([&] { return arrived_.size(); });
  }
  std::size_t held() const {
    return locked([&] { return held_.size(); });
  }
  std::vector<std::string> violations() const {
    return locked([&] { return violations_; });
  }

  void opened(const peer& who) override {
    locked([&] {
      opened_.push_back(who);
      if (++lives_[who.session] != 1) {
        violations_.push_back("session opened twice");
      }
    });
  }
  void received(frame_ptr frame) override {
    const auto message = frame->root();
    const bool is_bulk = traffic_class(message.which()) == traffic::bulk;
    std::function<void(const frame_ptr&)> hook;
    locked([&] {
      if (lives_[frame->session()] != 1) {
        violations_.push_back("frame outside its session");
      }
      arrived_.push_back({frame->session(), is_bulk, number_of(message), frame->bytes()});
      if (holding_) {
        held_.push_back(frame);
      }
      hook = hook_;
    });
    if (hook) {
      hook(frame);
    }
  }
  void ended(const peer& who, end_reason reason, const std::string& detail) override {
    locked([&] {
      ended_.push_back({who, reason, detail});
      if (++lives_[who.session] != 2) {
        violations_.push_back("session ended without being open");
      }
    });
  }
  void dial_failed(const std::string&, const std::string& error) override {
    locked([&] { dial_errors_.push_back(error); });
  }

 private:
  mutable std::mutex mutex_;
  bool holding_ = false;
  std::function<void(const frame_ptr&)> hook_;
  std::map<session_id, int> lives_;
  std::vector<peer> opened_;
  std::vector<end> ended_;
  std::vector<arrival> arrived_;
  std::vector<std::string> dial_errors_;
  std::vector<std::string> violations_;
  std::vector<frame_ptr> held_;
};

struct node_options {
  std::string token = "test";
  std::uint64_t incarnation = 0;  ///< 0: the next free one.
  std::size_t region_bytes = 0;
  bool listens = true;
  std::string role = "decode";
};

struct node {
  recorder seen;
  std::unique_ptr<transport> net;
  std::span<std::byte> region;

  std::string address() const { return net->self().address; }
  session_id last_session() const { return seen.opens().back().session; }
};

/// A place where nodes of one kind of transport live.
class world {
 public:
  virtual ~world() = default;
  virtual std::unique_ptr<transport> make(identity id, const std::string& token) = 0;
  /// Address for a node that is to listen.
  virtual std::string fresh_address() = 0;
  /// Lets time pass until `condition` holds; false if `budget_ms` was not enough.
  virtual bool run_until(const std::function<bool()>& condition, int budget_ms = 10'000) = 0;
  /// Lets whatever is under way happen.
  virtual void settle() = 0;

  std::unique_ptr<node> add(const std::string& name, node_options options = {}) {
    identity id;
    id.node = name;
    id.role = options.role;
    id.incarnation = options.incarnation == 0 ? ++incarnations_ : options.incarnation;
    id.fingerprint = 7;
    id.layout = 9;
    id.address = options.listens ? fresh_address() : "";
    auto result = std::make_unique<node>();
    result->net = make(std::move(id), options.token);
    if (options.region_bytes > 0) {
      result->region = result->net->allocate_region(options.region_bytes);
    }
    result->net->start(result->seen);
    return result;
  }

  /// Dials and waits for both ends; true if a session opened.
  bool open(node& from, node& to) {
    const auto before_from = from.seen.opens().size();
    const auto before_to = to.seen.opens().size();
    from.net->dial(to.address());
    return run_until([&] {
      return from.seen.opens().size() > before_from && to.seen.opens().size() > before_to;
    });
  }

 private:
  std::uint64_t incarnations_ = 100;
};

class memory_world final : public world {
 public:
  explicit memory_world(network_options options = {}) : network(std::move(options)) {}

  std::unique_ptr<transport> make(identity id, const std::string& token) override {
    return network.attach(std::move(id), token);
  }
  std::string fresh_address() override { return "host:" + std::to_string(++ports_); }
  bool run_until(const std::function<bool()>& condition, int budget_ms = 10'000) override {
    const auto deadline = network.now_ns() + std::int64_t{budget_ms} * 1'000'000;
    while (!condition()) {
      const auto due = network.next_due_ns();
      if (!due || *due > deadline) {
        return condition();
      }
      if (!network.deliver_one()) {
        network.advance_to(*due);
      }
    }
    return true;
  }
  void settle() override { network.advance_to(network.now_ns() + 100'000'000); }

  memory_network network;

 private:
  int ports_ = 0;
};

}  // namespace eldr::messages::test
