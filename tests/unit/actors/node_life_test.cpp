/// A node's life: ready, asked for its state, drained.

#include "node_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using enum wire::Message::Which;

using node_life = node_bench;

std::map<std::string, std::int64_t> counts_of(wire::Status::Reader status) {
  std::map<std::string, std::int64_t> out;
  for (auto c : status.getCounts()) {
    out[read(c.getName())] = c.getValue();
  }
  return out;
}

TEST_F(node_life, is_ready_once_its_actors_are_and_the_members_are_met) {
  start();
  run_ms(50, {{"ready", 1}});
  EXPECT_EQ(ready_calls, 0) << "the router is not met";
  up("router-1", "router");
  run_ms(50, {{"ready", 0}});
  EXPECT_EQ(ready_calls, 0) << "the gateway has no settled router";
  run_ms(50, {{"ready", 1}});
  EXPECT_EQ(ready_calls, 1);
  run_ms(50, {{"ready", 1}});
  EXPECT_EQ(ready_calls, 1);
  EXPECT_EQ(worker->count<describe>(), 0U) << "a ready node asks no more";
}

TEST_F(node_life, actors_that_count_no_readiness_are_ready) {
  start();
  up("router-1", "router");
  run_ms(1, {{"in_flight", 0}});
  EXPECT_EQ(ready_calls, 1);
}

TEST_F(node_life, waits_for_missing_members_no_longer_than_settle_ms) {
  start();
  run_ms(limits.settle_ms - 30, {});
  EXPECT_EQ(ready_calls, 0);
  run_ms(60, {});
  EXPECT_EQ(ready_calls, 1);
}

TEST_F(node_life, waits_for_a_slow_actor_without_asking_again) {
  start();
  bench.advance_ms(1000);
  EXPECT_EQ(worker->count<describe>(), 1U);
}

TEST_F(node_life, a_status_gathers_the_counts_of_all_actors) {
  start();
  const auto router = up("router-1", "router");
  bench.down(up("decode-1", "decode"));
  run_ms(50, {});
  bench.advance_ms(450);
  const auto client = up("client-1", "client");
  bench.receive(client, make_status_request(77));
  EXPECT_THAT(bench.take(STATUS), IsEmpty());
  answer_surveys({{"in_flight", 3}});
  const auto& m = bench.take_one(STATUS);
  EXPECT_EQ(m.session, client->session);
  const auto status = m.root().getStatus();
  EXPECT_EQ(status.getTicket(), 77U);
  EXPECT_EQ(read(status.getNode()), "gateway-1");
  EXPECT_EQ(read(status.getRole()), "gateway");
  EXPECT_EQ(status.getIncarnation(), 90U);
  EXPECT_EQ(status.getFingerprint(), 5U);
  EXPECT_EQ(read(status.getBackend()), "manual");
  EXPECT_TRUE(status.getReady());
  EXPECT_FALSE(status.getDraining());
  EXPECT_EQ(status.getUptimeMs(), 500U);
  EXPECT_THAT(read(status.getPeers()), ElementsAre("router-1"));
  EXPECT_THAT(counts_of(status), testing::IsSupersetOf({Pair("in_flight", 3), Pair("helpers", 1),
                                                        Pair("sessions_lost_total", 1)}));
}

TEST_F(node_life, each_asker_gets_its_own_answer) {
  start();
  const auto a = up("client-1", "client");
  const auto b = up("client-2", "client");
  bench.receive(a, make_status_request(1));
  bench.receive(b, make_status_request(2));
  answer_surveys({});
  const auto all = bench.take(STATUS);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]->session, a->session);
  EXPECT_EQ(all[0]->root().getStatus().getTicket(), 1U);
  EXPECT_EQ(all[1]->session, b->session);
  EXPECT_EQ(all[1]->root().getStatus().getTicket(), 2U);
}

TEST_F(node_life, impatient_askers_are_bounded_and_do_not_keep_a_node_from_draining) {
  start();
  up("router-1", "router");
  run_ms(1, {});
  const auto client = up("client-1", "client");
  for (std::uint64_t i = 0; i < 200; ++i) {
    bench.receive(client, make_status_request(i));
  }
  EXPECT_LE(worker->count<describe>(), 64U);
  bench.put(drain{});
  run_ms(50, {{"in_flight", 0}});
  EXPECT_EQ(drained_calls, 1);
}

TEST_F(node_life, drains_its_actors_and_ends_when_nothing_is_in_flight) {
  start();
  up("router-1", "router");
  run_ms(1, {});
  const auto client = up("client-1", "client");
  bench.receive(client, make_shutdown(60'000));
  bench.put(drain{});
  EXPECT_EQ(worker->count<drain>(), 1U) << "told once";
  EXPECT_EQ(helper->count<drain>(), 1U);
  run_ms(500, {{"in_flight", 2}});
  EXPECT_EQ(drained_calls, 0);
  run_ms(50, {{"in_flight", 0}});
  EXPECT_EQ(drained_calls, 1);
  run_ms(500, {{"in_flight", 0}});
  EXPECT_EQ(drained_calls, 1);
}

TEST_F(node_life, a_drain_ends_at_its_deadline_whatever_is_left) {
  start();
  up("router-1", "router");
  run_ms(1, {});
  bench.receive(up("client-1", "client"), make_shutdown(300));
  run_ms(270, {{"in_flight", 2}});
  EXPECT_EQ(drained_calls, 0);
  run_ms(60, {{"in_flight", 2}});
  EXPECT_EQ(drained_calls, 1);
}

TEST_F(node_life, a_drained_node_dials_no_more) {
  start();
  const auto router = up("router-1", "router");
  run_ms(1, {});
  bench.put(drain{});
  run_ms(50, {{"in_flight", 0}});
  ASSERT_EQ(drained_calls, 1);
  take_dials();
  bench.down(router);
  bench.advance_ms(10'000);
  EXPECT_THAT(take_dials(), IsEmpty());
}

}  // namespace
}  // namespace eldr::actors::test
