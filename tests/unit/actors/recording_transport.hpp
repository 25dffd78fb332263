#pragma once
/// A transport that keeps what it is asked to do, for tests to look at and to answer.

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "messages/transport.hpp"

namespace eldr::actors::test {

struct sent_message {
  messages::session_id session = 0;
  messages::outgoing_ptr message;
  bool taken = false;

  wire::Message::Reader root() const { return message->root().asReader(); }
};

struct pending_get {
  messages::session_id session = 0;
  std::uint32_t region = 0;
  std::vector<messages::get_range> ranges;
  messages::get_callback done;
};

class recording_transport final : public messages::transport {
 public:
  explicit recording_transport(messages::identity self) : self_(std::move(self)) {}

  std::span<std::byte> allocate_region(std::size_t) override { return {}; }
  void start(messages::transport_events&) override {}
  void dial(const std::string& address) override { dials.push_back(address); }
  messages::send_result send(messages::session_id session,
                             messages::outgoing_ptr message) override {
    if (!open.contains(session)) {
      return messages::send_result::no_session;
    }
    sent.push_back({session, std::move(message)});
    return messages::send_result::queued;
  }
  void close(messages::session_id session, const std::string& detail) override {
    closed[session] = detail;
  }
  void get(messages::session_id session, std::uint32_t region,
           std::vector<messages::get_range> ranges, messages::get_callback done) override {
    gets.push_back({session, region, std::move(ranges), std::move(done)});
  }
  void stop() override {}
  messages::transport_counters counters() const override { return {}; }
  const messages::identity& self() const noexcept override { return self_; }

  std::set<messages::session_id> open;
  std::deque<sent_message> sent;  ///< In order; never shrinks, so that readers stay valid.
  std::deque<pending_get> gets;
  std::vector<std::string> dials;
  std::map<messages::session_id, std::string> closed;

 private:
  messages::identity self_;
};

}  // namespace eldr::actors::test
