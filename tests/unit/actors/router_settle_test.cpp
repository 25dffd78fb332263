/// A starting router: what it holds, for how long, and how it learns who is there.

#include "router_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using enum wire::Message::Which;

using router_settle = router_bench;

TEST_F(router_settle, holds_submits_until_all_expected_workers_have_reported) {
  start({"prefill-1", "decode-1"});
  submit(1);
  prefill = worker_up("prefill-1", "prefill");
  decode = bench.up("decode-1", "decode");
  submit(2);
  EXPECT_THAT(bench.take(PREFILL_TASK), IsEmpty());
  EXPECT_EQ(bench.count("held"), 2);
  EXPECT_EQ(bench.count("ready"), 0);
  bench.receive(decode, make_queue_depth({}));
  EXPECT_EQ(bench.take(PREFILL_TASK).size(), 2U);
  EXPECT_EQ(bench.count("held"), 0);
  EXPECT_EQ(bench.count("ready"), 1);
}

TEST_F(router_settle, waits_for_missing_workers_no_longer_than_settle_ms) {
  limits.settle_ms = 500;
  start({"prefill-1", "decode-1", "decode-2"});
  prefill = worker_up("prefill-1", "prefill");
  decode = worker_up("decode-1", "decode");
  submit(1);
  bench.advance_ms(499);
  EXPECT_THAT(bench.take(PREFILL_TASK), IsEmpty());
  bench.advance_ms(1);
  EXPECT_EQ(bench.take(PREFILL_TASK).size(), 1U);
}

TEST_F(router_settle, a_submit_held_past_its_own_deadline_is_failed) {
  limits.settle_ms = 500;
  limits.route_ms = 300;
  start({"prefill-1", "decode-1"});
  submit(1);
  bench.advance_ms(250);
  submit(2);
  prefill = worker_up("prefill-1", "prefill");
  bench.advance_ms(250);
  const auto failed = take_failed();
  EXPECT_EQ(failed.getAttempt().getRequest().getCounter(), 1U);
  EXPECT_EQ(failed.getReason(), wire::FailReason::DEADLINE);
  EXPECT_EQ(bench.take(PREFILL_TASK).size(), 1U);
}

TEST_F(router_settle, a_full_queue_refuses_with_a_hint_to_retry) {
  limits.router_queue_max = 2;
  start({"prefill-1"});
  submit(1);
  submit(2);
  EXPECT_THAT(bench.take(FAILED), IsEmpty());
  submit(3);
  const auto failed = take_failed();
  EXPECT_EQ(failed.getReason(), wire::FailReason::OVERLOADED);
  EXPECT_EQ(failed.getPhase(), wire::Phase::ROUTE);
  EXPECT_GT(failed.getRetryAfterMs(), 0U);
  EXPECT_EQ(bench.count("held"), 2);
}

TEST_F(router_settle, forgets_what_is_cancelled_or_has_lost_its_gateway) {
  start({"prefill-1"});
  submit(1);
  submit(2);
  const auto other = bench.up("gateway-2", "gateway");
  bench.receive(other, make_submit({attempt(other, 1), {1}}));
  EXPECT_EQ(bench.count("held"), 3);
  bench.receive(gateway, make_cancel(wire::ActorKind::ROUTER, attempt(gateway, 1)));
  EXPECT_EQ(bench.count("held"), 2);
  bench.down(other);
  EXPECT_EQ(bench.count("held"), 1);
  EXPECT_EQ(bench.count("in_flight"), 1);
}

TEST_F(router_settle, a_cancel_may_overtake_its_submit) {
  start_small();
  bench.receive(gateway, make_cancel(wire::ActorKind::ROUTER, attempt(gateway, 1)));
  submit(1);
  EXPECT_THAT(bench.take_kinds(), IsEmpty());
  bench.receive(gateway, make_submit({attempt(gateway, 1, 2), {1}}));
  EXPECT_EQ(bench.take(PREFILL_TASK).size(), 1U) << "a newer attempt is another matter";
}

TEST_F(router_settle, a_worker_that_has_not_reported_gets_nothing) {
  start();
  bench.up("prefill-1", "prefill");
  submit(1);
  EXPECT_EQ(take_failed().getReason(), wire::FailReason::NO_WORKER);
}

TEST_F(router_settle, gateways_hear_of_members_at_once_and_of_load_at_a_pace) {
  start_small();
  const auto late = worker_up("decode-2", "decode");
  EXPECT_EQ(bench.take(CLUSTER_VIEW).size(), 1U) << "a new member";
  bench.advance_ms(1000);
  bench.take(CLUSTER_VIEW);
  bench.receive(late, make_queue_depth({.running = 1}));
  const auto first = bench.take(CLUSTER_VIEW);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_TRUE(first[0]->root().getClusterView().getReady());
  for (int i = 0; i < 20; ++i) {
    bench.receive(late, make_queue_depth({.running = 2}));
  }
  EXPECT_THAT(bench.take(CLUSTER_VIEW), IsEmpty());
  bench.advance_ms(500);
  const auto view = bench.take_one(CLUSTER_VIEW).root().getClusterView();
  ASSERT_EQ(view.getWorkers().size(), 3U);
  EXPECT_EQ(read(view.getWorkers()[1].getNode()), "decode-2");
  EXPECT_EQ(view.getWorkers()[1].getDepth(), 2U);
  bench.down(late);
  EXPECT_EQ(bench.take_one(CLUSTER_VIEW).root().getClusterView().getWorkers().size(), 2U);
}

TEST_F(router_settle, a_session_that_counts_tasks_never_sent_is_closed) {
  start_small();
  bench.receive(decode, make_queue_depth({.last_processed = 1}));
  EXPECT_THAT(bench.ctx.net.closed, ElementsAre(testing::Key(decode->session)));
  bench.receive(prefill, make_queue_depth({}));
  EXPECT_EQ(bench.ctx.net.closed.size(), 1U) << "the honest one stays";
}

TEST_F(router_settle, a_report_from_a_node_that_is_no_worker_closes_its_session) {
  start_small();
  bench.receive(gateway, make_queue_depth({}));
  EXPECT_TRUE(bench.ctx.net.closed.contains(gateway->session));
}

}  // namespace
}  // namespace eldr::actors::test
