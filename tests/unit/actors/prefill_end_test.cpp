/// How prefill work ends otherwise than by success: leases, cancels, and peers that go away.

#include "prefill_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using enum wire::Message::Which;

using prefill_end = prefill_bench;

TEST_F(prefill_end, a_release_in_time_is_ok_and_the_blocks_stay_cached) {
  start();
  const auto kv = leased(key(1), prompt_of(8));
  EXPECT_EQ(bench.count("leases"), 1);
  EXPECT_EQ(bench.count("blocks_pinned"), 2);
  release(key(1), kv.lease);
  const auto& m = bench.take_one(RELEASED);
  EXPECT_EQ(m.session, decoder->session);
  EXPECT_EQ(read(m.root().getReleased().getAttempt()), key(1));
  EXPECT_EQ(m.root().getReleased().getLease(), kv.lease);
  EXPECT_TRUE(m.root().getReleased().getOk());
  expect_at_rest();
  EXPECT_EQ(bench.count("blocks_cached"), 2);
}

TEST_F(prefill_end, a_late_release_is_not_ok_though_no_timer_has_fired) {
  limits.lease_ms = 1000;
  start();
  const auto kv = leased(key(1), prompt_of(8));
  bench.freeze_ms(1000);
  release(key(1), kv.lease);
  EXPECT_FALSE(bench.take_one(RELEASED).root().getReleased().getOk());
  EXPECT_EQ(bench.count("leases_expired_total"), 1);
  expect_at_rest();
}

TEST_F(prefill_end, a_lease_runs_out_by_itself) {
  limits.lease_ms = 1000;
  start();
  const auto kv = leased(key(1), prompt_of(8));
  bench.advance_ms(999);
  EXPECT_EQ(bench.count("leases"), 1);
  bench.advance_ms(1);
  expect_at_rest();
  release(key(1), kv.lease);
  EXPECT_FALSE(bench.take_one(RELEASED).root().getReleased().getOk());
}

TEST_F(prefill_end, nobody_releases_anothers_lease) {
  start();
  const auto kv = leased(key(1), prompt_of(8));
  release(key(1, 2), kv.lease);
  release(key(2), kv.lease);
  release(key(1), kv.lease + 1);
  for (const auto* m : bench.take(RELEASED)) {
    EXPECT_FALSE(m->root().getReleased().getOk());
  }
  EXPECT_EQ(bench.count("leases"), 1);
  release(key(1), kv.lease);
  EXPECT_TRUE(bench.take_one(RELEASED).root().getReleased().getOk());
}

TEST_F(prefill_end, an_abandoned_lease_ends_without_an_answer) {
  start();
  const auto kv = leased(key(1), prompt_of(8));
  release(key(1), kv.lease, true);
  release(key(1), kv.lease, true);
  EXPECT_THAT(bench.take(RELEASED), IsEmpty());
  expect_at_rest();
}

TEST_F(prefill_end, a_cancel_may_overtake_its_task) {
  start();
  bench.receive(gateway, make_cancel(wire::ActorKind::PREFILL, key(1)));
  give(key(1), prompt_of(8));
  EXPECT_EQ(engine.waiting(), 0U);
  EXPECT_THAT(bench.take(FAILED), IsEmpty()) << "nobody waits for an answer";
  bench.advance_ms(2);
  const auto reports = bench.take(QUEUE_DEPTH);
  const auto depth = reports.back()->root().getQueueDepth();
  EXPECT_EQ(depth.getLastProcessed(), 1U) << "but the router's count must come back";
  ASSERT_EQ(depth.getEnded().size(), 1U);
  EXPECT_EQ(read(depth.getEnded()[0]), key(1));
  expect_at_rest();
}

TEST_F(prefill_end, cancel_while_waiting_for_blocks) {
  start();
  const auto kv = leased(key(1), prompt_of(block_count * 4));
  give(key(2), prompt_of(8, 2));
  bench.receive(gateway, make_cancel(wire::ActorKind::PREFILL, key(2)));
  EXPECT_EQ(bench.count("waiting"), 0);
  release(key(1), kv.lease);
  expect_at_rest();
  EXPECT_THAT(take_ended(), ElementsAre(key(1), key(2)));
}

TEST_F(prefill_end, cancel_between_steps_frees_at_once) {
  limits.prefill_chunk_tokens = 4;
  start();
  give(key(1), prompt_of(8, 1));  // Has the engine.
  give(key(2), prompt_of(8, 2));  // Admitted, in no step.
  EXPECT_EQ(bench.count("blocks_pinned"), 4);
  bench.receive(gateway, make_cancel(wire::ActorKind::PREFILL, key(2)));
  EXPECT_EQ(bench.count("blocks_pinned"), 2);
  EXPECT_EQ(bench.count("running"), 1);
}

TEST_F(prefill_end, cancel_during_a_step_frees_when_the_step_ends) {
  start();
  give(key(1), prompt_of(8));
  bench.receive(gateway, make_cancel(wire::ActorKind::PREFILL, key(1)));
  EXPECT_EQ(bench.count("blocks_pinned"), 2) << "the engine still writes";
  EXPECT_THAT(take_ended(), IsEmpty());
  step();
  expect_at_rest();
  EXPECT_EQ(bench.count("blocks_cached"), 0) << "nothing of it is published";
  EXPECT_THAT(bench.take(TOKENS), IsEmpty());
  EXPECT_THAT(bench.take(HANDOFF), IsEmpty());
  EXPECT_THAT(take_ended(), ElementsAre(key(1)));
}

TEST_F(prefill_end, cancel_during_the_sum_frees_when_it_is_done) {
  start();
  give(key(1), prompt_of(8));
  step();
  bench.receive(gateway, make_cancel(wire::ActorKind::PREFILL, key(1)));
  EXPECT_EQ(bench.count("blocks_pinned"), 2) << "the signature cache still reads";
  answer_sums();
  EXPECT_THAT(bench.take(HANDOFF), IsEmpty());
  expect_at_rest();
  EXPECT_THAT(take_ended(), ElementsAre(key(1)));
}

TEST_F(prefill_end, cancel_after_the_handoff_ends_the_lease) {
  start();
  const auto kv = leased(key(1), prompt_of(8));
  bench.receive(gateway, make_cancel(wire::ActorKind::PREFILL, key(1)));
  expect_at_rest();
  release(key(1), kv.lease);
  EXPECT_FALSE(bench.take_one(RELEASED).root().getReleased().getOk());
}

TEST_F(prefill_end, a_cancel_spares_other_requests_and_newer_attempts) {
  start();
  give(key(1, 2), prompt_of(8, 1));
  give(key(2), prompt_of(8, 2));
  bench.receive(gateway, make_cancel(wire::ActorKind::PREFILL, key(1, 1)));
  run_all();
  EXPECT_EQ(bench.take(HANDOFF).size(), 2U);
}

TEST_F(prefill_end, a_newer_attempt_ends_the_older_one_wherever_it_is) {
  start();
  const auto old = leased(key(1), prompt_of(8));
  give(key(1, 2), prompt_of(9));
  EXPECT_EQ(bench.count("leases"), 0);
  release(key(1), old.lease);
  EXPECT_FALSE(bench.take_one(RELEASED).root().getReleased().getOk());
  give(key(1, 3), prompt_of(10));
  run_all();
  EXPECT_EQ(read(take_handoff().getAttempt()), key(1, 3)) << "the second was in the step";
  give(key(1, 2), prompt_of(9));
  EXPECT_EQ(engine.waiting(), 0U) << "an older one that comes late is refused";
}

TEST_F(prefill_end, the_loss_of_the_gateway_ends_all_that_is_its) {
  limits.prefill_chunk_tokens = 4;
  start();
  const auto other = bench.up("gateway-2", "gateway");
  leased(key(1), prompt_of(8, 1));
  give(key(2), prompt_of(8, 2));                // In a step.
  give(key(3), prompt_of(12, 3));               // Between steps.
  give(key(4), prompt_of(block_count * 4, 4));  // Waits.
  give(attempt(other, 1), prompt_of(8, 5));
  bench.down(gateway);
  EXPECT_EQ(bench.count("leases"), 0);
  run_all();
  EXPECT_EQ(read(take_handoff().getAttempt()), attempt(other, 1));
  EXPECT_EQ(bench.count("running") + bench.count("waiting"), 0);
  EXPECT_EQ(bench.count("leases"), 1);
}

TEST_F(prefill_end, a_task_of_an_unknown_gateway_is_dropped_and_counted_back) {
  start();
  const attempt_key stranger{{999, 1}, 1};
  give(stranger, prompt_of(8));
  EXPECT_EQ(engine.waiting(), 0U);
  EXPECT_THAT(take_ended(), ElementsAre(stranger));
}

TEST_F(prefill_end, the_loss_of_the_router_fails_what_was_on_its_way_there) {
  limits.prefill_chunk_tokens = 4;
  start();
  const auto kv = leased(key(1), prompt_of(8, 1));
  give(key(2), prompt_of(8, 2));                // In a step.
  give(key(3), prompt_of(block_count * 4, 3));  // Waits.
  bench.down(router);
  const auto failed = bench.take(FAILED);
  ASSERT_EQ(failed.size(), 2U);
  for (const auto* m : failed) {
    EXPECT_EQ(m->root().getFailed().getReason(), wire::FailReason::PEER_LOST);
  }
  EXPECT_EQ(bench.count("leases"), 1) << "what was handed off needs no router";
  run_all();
  EXPECT_THAT(bench.take(HANDOFF), IsEmpty());
  release(key(1), kv.lease);
  expect_at_rest();
}

TEST_F(prefill_end, an_engine_error_spares_prompts_that_were_not_in_the_step) {
  limits.prefill_chunk_tokens = 4;
  start();
  give(key(1), prompt_of(8, 1));
  give(key(2), prompt_of(8, 2));
  step("broken");
  EXPECT_EQ(read(take_failed().getAttempt()), key(1));
  run_all();
  EXPECT_EQ(read(take_handoff().getAttempt()), key(2));
}

}  // namespace
}  // namespace eldr::actors::test
