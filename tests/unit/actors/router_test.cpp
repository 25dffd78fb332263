/// A settled router: whom it chooses, what it refuses, and in which order it speaks.

#include "router_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using enum wire::Message::Which;

using router = router_bench;

TEST_F(router, tells_the_request_before_the_worker) {
  start_small();
  submit(1);
  EXPECT_THAT(bench.take_kinds(), ElementsAre(PLACED, PREFILL_TASK));
  bench.receive(prefill, make_handoff(handoff_of(1)));
  EXPECT_THAT(bench.take_kinds(), ElementsAre(PLACED, DECODE_TASK));
}

TEST_F(router, placed_names_the_worker_and_its_incarnation) {
  start_small();
  submit(7);
  const auto& m = bench.take_one(PLACED);
  const auto placed = m.root().getPlaced();
  EXPECT_EQ(m.session, gateway->session);
  EXPECT_EQ(read(placed.getAttempt()), attempt(gateway, 7));
  EXPECT_EQ(placed.getPhase(), wire::Phase::PREFILL);
  EXPECT_EQ(read(placed.getNode()), "prefill-1");
  EXPECT_EQ(placed.getIncarnation(), prefill->id.incarnation);
  EXPECT_EQ(placed.getFingerprint(), actor_bench::fingerprint);
}

TEST_F(router, a_prefill_task_carries_the_whole_submit) {
  start_small();
  submit_fields f{attempt(gateway, 3, 2), {9, 8, 7}, {5, {77, 0.5F, 3, 0.9F}}, {"decode-1"}, 0};
  auto message = make_submit(f);
  message->root().getSubmit().setGenerated(1);
  message->root().getSubmit().setLabel("code");
  bench.receive(gateway, std::move(message));
  const auto task = bench.take_one(PREFILL_TASK).root().getPrefillTask();
  EXPECT_EQ(task.getTaskNumber(), 1U);
  EXPECT_EQ(read(task.getAttempt()), f.key);
  EXPECT_EQ(read(task.getTokens()), f.tokens);
  EXPECT_EQ(read(task.getSampling()).tokens_max, 5U);
  EXPECT_EQ(read(task.getSampling()).sampling.seed, 77U);
  EXPECT_EQ(task.getGenerated(), 1U);
  EXPECT_EQ(read(task.getLabel()), "code");
  EXPECT_EQ(read(task.getAvoid()), f.avoid);
}

TEST_F(router, a_decode_task_carries_the_whole_handoff) {
  start_small();
  auto f = handoff_of(3);
  f.first_token = 42;
  f.gen = {9, {77, 0.5F, 3, 0.9F}};
  f.generated = 2;
  bench.receive(prefill, make_handoff(f));
  const auto& m = bench.take_one(DECODE_TASK);
  const auto task = m.root().getDecodeTask();
  EXPECT_EQ(m.session, decode->session);
  EXPECT_EQ(task.getTaskNumber(), 1U);
  EXPECT_EQ(read(task.getAttempt()), f.key);
  const auto kv = read(task.getKv());
  EXPECT_EQ(kv.node, "prefill-1");
  EXPECT_EQ(kv.incarnation, prefill->id.incarnation);
  EXPECT_EQ(kv.lease, 3U);
  EXPECT_THAT(kv.blocks, ElementsAre(4, 2));
  EXPECT_EQ(kv.tokens, 20U);
  EXPECT_EQ(task.getFirstToken(), 42U);
  EXPECT_EQ(read(task.getSampling()).tokens_max, 9U);
  EXPECT_EQ(task.getGenerated(), 2U);
}

TEST_F(router, refuses_what_no_pool_can_hold) {
  start();
  worker_up("prefill-1", "prefill", {.total_blocks = 4});
  worker_up("decode-1", "decode", {.total_blocks = 6});
  const auto ask = [&](std::uint64_t counter, std::uint32_t prompt, std::uint32_t tokens_max) {
    bench.receive(gateway, make_submit({attempt(gateway, counter),
                                        token_ids(prompt, 1),
                                        {.tokens_max = tokens_max, .sampling = {}}}));
    const auto failed = bench.take(FAILED);
    EXPECT_EQ(failed.size() + bench.take(PREFILL_TASK).size(), 1U);
    return failed.empty() ? wire::FailReason::NONE : failed[0]->root().getFailed().getReason();
  };
  EXPECT_EQ(ask(1, 64, 33), wire::FailReason::NONE) << "64 prompt tokens, 32 more to store";
  EXPECT_EQ(ask(2, 65, 1), wire::FailReason::TOO_LARGE) << "more than the prefill pool";
  EXPECT_EQ(ask(3, 64, 34), wire::FailReason::TOO_LARGE) << "more than the decode pool";
  EXPECT_EQ(ask(4, 2, 0xffffffff), wire::FailReason::TOO_LARGE) << "the sum must not wrap";
}

TEST_F(router, without_a_prefill_worker_the_request_is_told_to_come_back) {
  start();
  worker_up("decode-1", "decode");
  submit(1);
  const auto failed = take_failed();
  EXPECT_EQ(failed.getReason(), wire::FailReason::NO_WORKER);
  EXPECT_EQ(failed.getPhase(), wire::Phase::ROUTE);
  EXPECT_GT(failed.getRetryAfterMs(), 0U);
}

TEST_F(router, without_a_decode_worker_the_lease_is_abandoned) {
  start();
  prefill = worker_up("prefill-1", "prefill");
  worker_up("decode-1", "decode", {.draining = true});
  bench.receive(prefill, make_handoff(handoff_of(1)));
  const auto failed = take_failed();
  EXPECT_EQ(failed.getReason(), wire::FailReason::NO_WORKER);
  EXPECT_EQ(failed.getPhase(), wire::Phase::DECODE);
  const auto& m = bench.take_one(RELEASE);
  EXPECT_EQ(m.session, prefill->session);
  EXPECT_EQ(m.root().getRelease().getLease(), 3U);
  EXPECT_TRUE(m.root().getRelease().getAbandon());
  EXPECT_THAT(bench.take(DECODE_TASK), IsEmpty());
}

TEST_F(router, draining_workers_get_nothing_new) {
  start();
  worker_up("prefill-1", "prefill", {.draining = true});
  const auto awake = worker_up("prefill-2", "prefill");
  worker_up("decode-1", "decode");
  for (std::uint32_t i = 1; i <= 8; ++i) {
    submit(i, {i});
  }
  EXPECT_THAT(receivers(PREFILL_TASK),
              testing::AllOf(testing::SizeIs(8), testing::Each(awake->session)));
}

TEST_F(router, avoids_suspects_while_others_remain) {
  start();
  const auto first = worker_up("prefill-1", "prefill");
  const auto second = worker_up("prefill-2", "prefill");
  worker_up("decode-1", "decode");
  for (std::uint32_t i = 1; i <= 8; ++i) {
    bench.receive(gateway,
                  make_submit({.key = attempt(gateway, i), .tokens = {i}, .avoid = {"prefill-1"}}));
  }
  EXPECT_THAT(receivers(PREFILL_TASK), testing::Each(second->session));
  bench.down(second);
  bench.receive(gateway,
                make_submit({.key = attempt(gateway, 9), .tokens = {9}, .avoid = {"prefill-1"}}));
  EXPECT_THAT(receivers(PREFILL_TASK), ElementsAre(first->session)) << "better than none";
}

TEST_F(router, a_handoff_avoids_suspects_too) {
  start_small();
  const auto other = worker_up("decode-2", "decode");
  auto f = handoff_of(1);
  f.avoid = {"decode-1"};
  for (int i = 0; i < 8; ++i) {
    bench.receive(prefill, make_handoff(f));
  }
  EXPECT_THAT(receivers(DECODE_TASK), testing::Each(other->session));
}

TEST_F(router, keeps_a_resumed_request_within_its_fingerprint) {
  start_small();
  const auto other = bench.up({"prefill-2", "prefill", 0, 8, actor_bench::layout, {}});
  bench.receive(other, make_queue_depth({}));
  for (std::uint32_t i = 1; i <= 8; ++i) {
    bench.receive(gateway,
                  make_submit({.key = attempt(gateway, i), .tokens = {i}, .fingerprint = 8}));
  }
  EXPECT_THAT(receivers(PREFILL_TASK),
              testing::AllOf(testing::SizeIs(8), testing::Each(other->session)));
  bench.receive(gateway,
                make_submit({.key = attempt(gateway, 9), .tokens = {9}, .fingerprint = 99}));
  EXPECT_EQ(take_failed().getReason(), wire::FailReason::FINGERPRINT);
}

TEST_F(router, decodes_where_the_numerics_equal_those_of_prefill) {
  start_small();
  auto f = handoff_of(1);
  f.fingerprint = 8;
  bench.receive(prefill, make_handoff(f));
  EXPECT_EQ(take_failed().getReason(), wire::FailReason::NO_WORKER);
  EXPECT_EQ(bench.take(RELEASE).size(), 1U);
}

TEST_F(router, abandons_the_lease_of_a_cancelled_attempt) {
  start_small();
  bench.receive(gateway, make_cancel(wire::ActorKind::ROUTER, attempt(gateway, 1)));
  bench.receive(prefill, make_handoff(handoff_of(1)));
  EXPECT_THAT(bench.take(DECODE_TASK), IsEmpty());
  EXPECT_TRUE(bench.take_one(RELEASE).root().getRelease().getAbandon());
}

TEST_F(router, abandons_the_lease_of_a_request_without_its_gateway) {
  start_small();
  const auto f = handoff_of(1);
  bench.down(gateway);
  bench.receive(prefill, make_handoff(f));
  EXPECT_THAT(bench.take(DECODE_TASK), IsEmpty());
  EXPECT_TRUE(bench.take_one(RELEASE).root().getRelease().getAbandon());
}

TEST_F(router, numbers_its_tasks_per_worker_and_counts_them_until_they_end) {
  start_small();
  submit(1);
  submit(2);
  bench.receive(prefill, make_handoff(handoff_of(1)));
  const auto tasks = bench.take(PREFILL_TASK);
  ASSERT_EQ(tasks.size(), 2U);
  EXPECT_EQ(tasks[0]->root().getPrefillTask().getTaskNumber(), 1U);
  EXPECT_EQ(tasks[1]->root().getPrefillTask().getTaskNumber(), 2U);
  EXPECT_EQ(bench.take_one(DECODE_TASK).root().getDecodeTask().getTaskNumber(), 1U);
  EXPECT_EQ(bench.count("depth"), 3);
  EXPECT_EQ(bench.count("in_flight"), 3);
  bench.receive(prefill, make_queue_depth(
                             {.running = 1, .last_processed = 2, .ended = {attempt(gateway, 1)}}));
  EXPECT_EQ(bench.count("depth"), 2);
  bench.receive(prefill, make_queue_depth({.last_processed = 2, .ended = {attempt(gateway, 2)}}));
  bench.receive(decode, make_queue_depth({.last_processed = 1, .ended = {attempt(gateway, 1)}}));
  EXPECT_EQ(bench.count("depth"), 0);
  EXPECT_EQ(bench.count("in_flight"), 0);
}

TEST_F(router, a_worker_that_comes_back_starts_at_zero) {
  start_small();
  submit(1);
  bench.down(prefill);
  EXPECT_EQ(bench.count("in_flight"), 0);
  prefill = worker_up("prefill-1", "prefill");
  bench.take(PREFILL_TASK);
  submit(2);
  EXPECT_EQ(bench.take_one(PREFILL_TASK).root().getPrefillTask().getTaskNumber(), 1U);
  EXPECT_EQ(bench.count("depth"), 1);
}

TEST_F(router, joins_the_shortest_queue_by_exact_load) {
  start_small();
  const auto other = worker_up("decode-2", "decode", {.running = 1});
  for (std::uint64_t i = 1; i <= 3; ++i) {
    bench.receive(prefill, make_handoff(handoff_of(i)));
  }
  // decode-1 first (0 against 1); then one each, in whichever order the tie fell.
  const auto chosen = receivers(DECODE_TASK);
  ASSERT_EQ(chosen.size(), 3U);
  EXPECT_EQ(chosen[0], decode->session);
  EXPECT_NE(chosen[1], chosen[2]);
  EXPECT_THAT(chosen, testing::Contains(other->session));
}

}  // namespace
}  // namespace eldr::actors::test
