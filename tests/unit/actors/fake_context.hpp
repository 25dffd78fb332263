#pragma once
/// A core's world in memory: its time, its wake-ups and its mailbox belong to the test.

#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "actors/common/core.hpp"
#include "recording_transport.hpp"

namespace eldr::actors::test {

class captured_mailbox final : public mailbox {
 public:
  void put(event e) override { events.push_back(std::move(e)); }

  template <class Event>
  std::size_t count() const {
    return static_cast<std::size_t>(std::count_if(events.begin(), events.end(), [](const event& e) {
      return std::holds_alternative<Event>(e);
    }));
  }

  std::deque<event> events;
};

struct spawned_actor {
  std::string name;
  std::unique_ptr<core> code;
  std::shared_ptr<captured_mailbox> mail;
};

class fake_context final : public context {
 public:
  explicit fake_context(messages::identity self) : net(std::move(self)) {}

  std::int64_t now_ns() const override { return time_ns; }
  std::uint64_t random() override { return rng_(); }
  messages::transport& transport() override { return net; }
  actor_ref self() override { return mail; }
  void wake_at(std::int64_t due_ns) override {
    if (!wake_ns || due_ns < *wake_ns) {
      wake_ns = due_ns;
    }
  }
  actor_ref spawn(const std::string& name, std::unique_ptr<core> code) override {
    spawned.push_back({name, std::move(code), std::make_shared<captured_mailbox>()});
    return spawned.back().mail;
  }
  void quit() override { ended = true; }

  recording_transport net;
  std::shared_ptr<captured_mailbox> mail = std::make_shared<captured_mailbox>();
  std::int64_t time_ns = 1'000'000'000;
  /// Earliest wake asked for. One wake uses it up, as with the real host: cores must ask again.
  std::optional<std::int64_t> wake_ns;
  std::vector<spawned_actor> spawned;
  bool ended = false;

 private:
  std::mt19937_64 rng_{1};
};

}  // namespace eldr::actors::test
