#pragma once
/// A node actor with two other actors on its node, whose answers the test gives.

#include <gmock/gmock.h>

#include "actor_bench.hpp"
#include "actors/node/node.hpp"
#include "wire_messages.hpp"

namespace eldr::actors::test {

class node_bench : public ::testing::Test {
 protected:
  void start() {
    node_spec spec;
    spec.members = members;
    spec.actors = {worker, helper};
    spec.backend = "manual";
    spec.on_ready = [this] { ++ready_calls; };
    spec.on_drained = [this] { ++drained_calls; };
    bench.run(std::make_unique<node_core>(limits, std::move(spec)));
  }
  /// A session with a member, at its address.
  peer_ptr up(const std::string& node, const std::string& role) {
    return bench.up({node, role, 0, 0, 0, node + ":1"});
  }
  void dial_fails(const std::string& node) { bench.put(dial_failed{node + ":1", "nobody there"}); }
  /// What was dialed since the last look.
  std::vector<std::string> take_dials() { return std::exchange(bench.ctx.net.dials, {}); }
  /// Passes time until the next dial; how long that took, at most `ms_max`.
  std::int64_t ms_to_dial(std::int64_t ms_max = 5'000) {
    for (std::int64_t ms = 0; ms <= ms_max; ++ms) {
      if (!take_dials().empty()) {
        return ms;
      }
      bench.advance_ms(1);
    }
    return -1;
  }
  /// The node's actors answer what they were asked.
  void answer_surveys(const named_counts& of_worker) {
    for (const auto& [mail, counts] :
         {std::pair(worker, of_worker), std::pair(helper, named_counts{{"helpers", 1}})}) {
      auto asked = std::exchange(mail->events, {});
      for (const auto& e : asked) {
        if (const auto* ask = std::get_if<describe>(&e)) {
          bench.put(described{ask->ticket, counts, {}});
        } else {
          mail->events.push_back(e);
        }
      }
    }
  }
  /// Time passes and surveys are answered as they come.
  void run_ms(std::int64_t ms, const named_counts& of_worker) {
    for (; ms > 0; --ms) {
      answer_surveys(of_worker);
      bench.advance_ms(1);
    }
    answer_surveys(of_worker);
  }

  settings limits;
  actor_bench bench{{"gateway-1", "gateway", 90, 5, 0, "gateway-1:1"}};
  std::vector<member> members{{"gateway-1", "gateway", "gateway-1:1"},
                              {"router-1", "router", "router-1:1"}};
  std::shared_ptr<captured_mailbox> worker = std::make_shared<captured_mailbox>();
  std::shared_ptr<captured_mailbox> helper = std::make_shared<captured_mailbox>();
  int ready_calls = 0;
  int drained_calls = 0;
};

}  // namespace eldr::actors::test
