#pragma once
/// A router with a gateway, and workers as a test wants them.

#include <gmock/gmock.h>

#include "actor_bench.hpp"
#include "actors/router/router.hpp"
#include "wire_messages.hpp"

namespace eldr::actors::test {

class router_bench : public ::testing::Test {
 protected:
  void start(std::vector<std::string> expected = {}) {
    bench.run(std::make_unique<router_core>(limits, router_spec{std::move(expected), {}, {}, {}}));
    gateway = bench.up("gateway-1", "gateway");
  }
  /// A worker that has reported that it is idle.
  peer_ptr worker_up(const std::string& node, const std::string& role, const depth_fields& d = {}) {
    auto peer = bench.up(node, role);
    bench.receive(peer, make_queue_depth(d));
    return peer;
  }
  /// One prefill and one decode worker, settled.
  void start_small() {
    start();
    prefill = worker_up("prefill-1", "prefill");
    decode = worker_up("decode-1", "decode");
    bench.take_kinds();
  }
  void submit(std::uint64_t counter, token_ids tokens = {1, 2, 3}) {
    bench.receive(gateway, make_submit({attempt(gateway, counter), std::move(tokens)}));
  }
  handoff_fields handoff_of(std::uint64_t counter) const {
    return {.key = attempt(gateway, counter),
            .kv = {"prefill-1", prefill->id.incarnation, 3, 0, {4, 2}, 20},
            .fingerprint = actor_bench::fingerprint};
  }
  /// Nodes that got a message of a kind, in order.
  std::vector<messages::session_id> receivers(wire::Message::Which kind) {
    std::vector<messages::session_id> out;
    for (const auto* m : bench.take(kind)) {
      out.push_back(m->session);
    }
    return out;
  }
  wire::Failed::Reader take_failed() {
    const auto& m = bench.take_one(wire::Message::FAILED);
    EXPECT_EQ(m.session, gateway->session);
    return m.root().getFailed();
  }

  settings limits;
  actor_bench bench{{"router-1", "router", 50, 0, 0, {}}};
  peer_ptr gateway;
  peer_ptr prefill;
  peer_ptr decode;
};

}  // namespace eldr::actors::test
