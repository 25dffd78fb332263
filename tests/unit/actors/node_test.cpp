/// A node's sessions: whom it dials and when, heartbeats, health.

#include "node_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using enum wire::Message::Which;

using node = node_bench;

TEST_F(node, dials_members_of_higher_name_and_other_role) {
  members = {{"decode-1", "decode", "decode-1:1"},
             {"gateway-1", "gateway", "gateway-1:1"},
             {"gateway-2", "gateway", "gateway-2:1"},
             {"prefill-1", "prefill", "prefill-1:1"},
             {"router-1", "router", "router-1:1"}};
  start();
  EXPECT_THAT(take_dials(), UnorderedElementsAre("prefill-1:1", "router-1:1"));
}

TEST_F(node, dials_once_and_not_while_the_session_is_open) {
  start();
  EXPECT_THAT(take_dials(), ElementsAre("router-1:1"));
  bench.advance_ms(10'000);
  EXPECT_THAT(take_dials(), IsEmpty()) << "the dial is still under way";
  const auto router = up("router-1", "router");
  for (int beat = 0; beat < 100; ++beat) {
    bench.receive(router, make_heartbeat());
    bench.advance_ms(100);
  }
  EXPECT_THAT(take_dials(), IsEmpty());
}

TEST_F(node, waits_longer_after_each_failed_dial_up_to_a_bound) {
  start();
  take_dials();
  std::vector<std::int64_t> waits;
  for (int i = 0; i < 8; ++i) {
    dial_fails("router-1");
    waits.push_back(ms_to_dial());
  }
  EXPECT_THAT(waits, ElementsAre(40, 80, 160, 320, 640, 1000, 1000, 1000));
}

TEST_F(node, a_session_that_lived_is_dialed_again_soon_whatever_came_before) {
  start();
  for (int i = 0; i < 8; ++i) {
    dial_fails("router-1");
  }
  bench.advance_ms(1000);
  const auto router = up("router-1", "router");
  for (int i = 0; i < 50; ++i) {
    bench.receive(router, make_heartbeat());
    bench.advance_ms(100);
  }
  take_dials();
  bench.down(router);
  EXPECT_EQ(ms_to_dial(), 20);
}

TEST_F(node, sessions_that_end_at_once_are_dialed_ever_more_slowly) {
  start();
  std::vector<std::int64_t> waits;
  for (int i = 0; i < 4; ++i) {
    take_dials();
    bench.down(up("router-1", "router"));
    waits.push_back(ms_to_dial());
  }
  EXPECT_THAT(waits, ElementsAre(40, 80, 160, 320));
}

TEST_F(node, beats_to_peers_and_not_to_clients) {
  start();
  const auto router = up("router-1", "router");
  const auto dialed_us = up("decode-1", "decode");
  up("client-1", "client");
  bench.advance_ms(3 * limits.heartbeat_ms);
  std::map<messages::session_id, std::vector<std::uint64_t>> ticks;
  for (const auto* m : bench.take(HEARTBEAT)) {
    ticks[m->session].push_back(m->root().getHeartbeat().getTick());
  }
  EXPECT_THAT(ticks, ElementsAre(testing::Pair(router->session, ElementsAre(1, 2, 3)),
                                 testing::Pair(dialed_us->session, ElementsAre(1, 2, 3))));
}

TEST_F(node, closes_the_session_of_a_silent_peer) {
  start();
  const auto silent = up("router-1", "router");
  const auto alive = up("decode-1", "decode");
  const auto client = up("client-1", "client");
  for (std::int64_t ms = 0; ms < limits.health_deadline_ms; ms += 50) {
    bench.receive(alive, make_heartbeat());
    bench.advance_ms(50);
  }
  EXPECT_THAT(bench.ctx.net.closed, IsEmpty()) << "the deadline is not past";
  bench.receive(alive, make_heartbeat());
  bench.advance_ms(limits.heartbeat_ms);
  EXPECT_THAT(bench.ctx.net.closed,
              ElementsAre(testing::Pair(silent->session, testing::HasSubstr("1000 ms"))));
}

TEST_F(node, a_node_that_was_frozen_gives_its_peers_one_fresh_deadline) {
  start();
  const auto router = up("router-1", "router");
  bench.freeze_ms(60'000);
  bench.advance_ms(0);
  EXPECT_THAT(bench.ctx.net.closed, IsEmpty()) << "it is this node that was away";
  bench.advance_ms(limits.health_deadline_ms);
  EXPECT_THAT(bench.ctx.net.closed, IsEmpty());
  bench.advance_ms(limits.heartbeat_ms);
  EXPECT_TRUE(bench.ctx.net.closed.contains(router->session)) << "one, and no more";
}

TEST_F(node, a_tick_that_is_a_little_late_forgives_nothing) {
  start();
  const auto router = up("router-1", "router");
  bench.advance_ms(limits.health_deadline_ms - 1);
  bench.freeze_ms(limits.health_deadline_ms / 2 - 10);
  bench.advance_ms(0);
  EXPECT_TRUE(bench.ctx.net.closed.contains(router->session));
}

}  // namespace
}  // namespace eldr::actors::test
