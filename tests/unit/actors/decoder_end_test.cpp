/// How decode work ends otherwise than by success: failed pulls, cancels, deadlines, lost peers.

#include "decoder_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using enum wire::Message::Which;

using decoder_end = decoder_bench;

TEST_F(decoder_end, a_failed_pull_abandons_the_lease_and_names_the_suspect) {
  start();
  std::uint64_t counter = 0;
  for (auto status : {messages::get_status::failed, messages::get_status::out_of_range,
                      messages::get_status::no_session}) {
    const auto task = prefilled(key(++counter), prompt_of(5));
    give(task);
    end_get(status);
    const auto failed = take_failed();
    EXPECT_EQ(failed.getReason(), wire::FailReason::PULL_FAILED);
    EXPECT_EQ(read(failed.getSuspect()), "prefill-1");
    expect_abandoned(task);
    EXPECT_THAT(take_ended(), ElementsAre(task.key));
    expect_at_rest();
  }
  EXPECT_EQ(bench.count("pulls_failed_total"), 3);
}

TEST_F(decoder_end, what_was_read_too_late_is_never_used) {
  start();
  const auto task = prefilled(key(1), prompt_of(5));
  give(task);
  end_get();
  bench.take(RELEASE);
  answer_release(task, false);
  const auto failed = take_failed();
  EXPECT_EQ(failed.getReason(), wire::FailReason::LEASE_EXPIRED);
  EXPECT_EQ(read(failed.getSuspect()), "prefill-1");
  EXPECT_THAT(bench.take(TOKENS), IsEmpty());
  EXPECT_EQ(engine.waiting(), 0U);
  expect_at_rest();
}

TEST_F(decoder_end, only_its_own_released_starts_a_sequence) {
  start();
  const auto task = prefilled(key(1), prompt_of(5));
  give(task);
  answer_release(task);  // Before the pull has ended: nobody asked.
  end_get();
  bench.receive(prefill, make_released(task.key, task.kv.lease + 1, true));
  bench.receive(prefill, make_released(key(2), task.kv.lease, true));
  bench.receive(prefill, make_released(key(1, 2), task.kv.lease, true));
  EXPECT_EQ(engine.waiting(), 0U);
  answer_release(task);
  EXPECT_EQ(engine.waiting(), 1U);
}

TEST_F(decoder_end, cancel_during_the_pull_frees_the_blocks_when_the_read_is_over) {
  start();
  const auto task = prefilled(key(1), prompt_of(5));
  give(task);
  bench.receive(gateway, make_cancel(wire::ActorKind::DECODER, key(1)));
  EXPECT_EQ(bench.count("blocks_pinned"), 3) << "the read still writes";
  EXPECT_THAT(bench.take(RELEASE), IsEmpty());
  end_get();
  expect_abandoned(task);
  EXPECT_THAT(bench.take(FAILED), IsEmpty());
  EXPECT_THAT(take_ended(), ElementsAre(key(1)));
  expect_at_rest();
}

TEST_F(decoder_end, cancel_while_waiting_for_released) {
  start();
  const auto task = prefilled(key(1), prompt_of(5));
  give(task);
  end_get();
  bench.take(RELEASE);
  bench.receive(gateway, make_cancel(wire::ActorKind::DECODER, key(1)));
  expect_at_rest();
  answer_release(task);
  EXPECT_EQ(engine.waiting(), 0U);
  EXPECT_THAT(take_ended(), ElementsAre(key(1)));
}

TEST_F(decoder_end, cancel_in_the_queue_abandons_the_lease) {
  limits.decode_batch_max = 1;
  start();
  give(prefilled(key(1), prompt_of(5)));
  const auto queued = prefilled(key(2), prompt_of(5));
  give(queued);
  bench.receive(gateway, make_cancel(wire::ActorKind::DECODER, key(2)));
  expect_abandoned(queued);
  EXPECT_EQ(bench.count("waiting"), 0);
}

TEST_F(decoder_end, cancel_in_a_step_frees_the_blocks_when_it_ends) {
  start();
  start_decoding(prefilled(key(1), long_answer(5, 8)));
  bench.take(TOKENS);
  bench.receive(gateway, make_cancel(wire::ActorKind::DECODER, key(1)));
  EXPECT_EQ(bench.count("blocks_pinned"), 3) << "the engine still writes";
  step();
  expect_at_rest();
  EXPECT_THAT(bench.take(TOKENS), IsEmpty());
  EXPECT_THAT(bench.take(RELEASE), IsEmpty()) << "the lease was released long ago";
  EXPECT_THAT(take_ended(), ElementsAre(key(1)));
  EXPECT_EQ(engine.waiting(), 0U);
}

TEST_F(decoder_end, a_newer_attempt_ends_the_older_one) {
  start();
  start_decoding(prefilled(key(1), long_answer(5, 8)));
  bench.take(TOKENS);
  give(prefilled(key(1, 2), prompt_of(6)));
  step();
  EXPECT_THAT(take_tokens(key(1)), IsEmpty());
  EXPECT_EQ(bench.count("in_flight"), 1);
  EXPECT_EQ(bench.count("pulling"), 1);
}

TEST_F(decoder_end, a_slow_pull_fails_now_and_frees_its_blocks_when_the_read_is_over) {
  limits.pull_ms = 100;
  start();
  const auto task = prefilled(key(1), prompt_of(5));
  give(task);
  bench.advance_ms(99);
  EXPECT_THAT(bench.take(FAILED), IsEmpty());
  bench.advance_ms(1);
  const auto failed = take_failed();
  EXPECT_EQ(failed.getReason(), wire::FailReason::PULL_FAILED);
  EXPECT_EQ(read(failed.getSuspect()), "prefill-1");
  EXPECT_EQ(bench.count("blocks_pinned"), 3);
  EXPECT_THAT(bench.take(RELEASE), IsEmpty());
  bench.advance_ms(1000);
  EXPECT_THAT(bench.take(FAILED), IsEmpty()) << "said once";
  end_get();
  expect_abandoned(task);
  expect_at_rest();
  EXPECT_EQ(engine.waiting(), 0U);
}

TEST_F(decoder_end, released_that_does_not_come_fails_the_attempt) {
  limits.pull_ms = 100;
  start();
  const auto task = prefilled(key(1), prompt_of(5));
  give(task);
  end_get();
  bench.take(RELEASE);
  bench.advance_ms(100);
  EXPECT_EQ(take_failed().getReason(), wire::FailReason::PULL_FAILED);
  expect_at_rest();
  answer_release(task);
  EXPECT_EQ(engine.waiting(), 0U);
}

TEST_F(decoder_end, waiting_too_long_for_blocks_abandons_the_lease) {
  limits.decode_batch_max = 1;
  limits.queue_ms = 100;
  limits.pull_ms = 10'000;
  start();
  give(prefilled(key(1), prompt_of(5)));
  const auto queued = prefilled(key(2), prompt_of(5));
  give(queued);
  bench.advance_ms(100);
  const auto failed = take_failed();
  EXPECT_EQ(read(failed.getAttempt()), key(2));
  EXPECT_EQ(failed.getReason(), wire::FailReason::OVERLOADED);
  expect_abandoned(queued);
  EXPECT_EQ(bench.count("in_flight"), 1);
}

TEST_F(decoder_end, an_engine_error_fails_the_sequences_of_the_step_only) {
  limits.decode_batch_max = 2;
  start();
  start_decoding(prefilled(key(1), long_answer(5, 8, 1)));
  start_decoding(prefilled(key(2), long_answer(5, 8, 60)));
  const auto third = prefilled(key(3), long_answer(5, 8, 120));
  give(third);
  step();
  ASSERT_THAT(engine.next().slices, SizeIs(2));
  step("out of luck");
  const auto failed = bench.take(FAILED);
  ASSERT_THAT(failed, SizeIs(2));
  for (const auto* m : failed) {
    EXPECT_EQ(m->root().getFailed().getReason(), wire::FailReason::ENGINE);
    EXPECT_THAT(read(m->root().getFailed().getDetail()), HasSubstr("out of luck"));
    EXPECT_EQ(read(m->root().getFailed().getSuspect()), "decode-1");
  }
  EXPECT_THAT(take_ended(), ElementsAre(key(1), key(2)));
  EXPECT_EQ(bench.count("pulling"), 1) << "the third has taken a place";
  end_get();
  answer_release(third);
  run_all();
  EXPECT_EQ(take_tokens(key(3)).size(), 8U);
  expect_at_rest();
}

TEST_F(decoder_end, the_loss_of_the_gateway_ends_all_that_is_its) {
  limits.decode_batch_max = 3;
  start();
  const auto other = bench.up("gateway-2", "gateway");
  start_decoding(prefilled(key(1), long_answer(5, 8)));
  const auto pulling = prefilled(key(2), prompt_of(5));
  give(pulling);
  give(prefilled(attempt(other, 1), prompt_of(5)));
  const auto queued = prefilled(key(3), prompt_of(5));
  give(queued);
  bench.down(gateway);
  expect_abandoned(queued);
  EXPECT_EQ(bench.count("waiting"), 0);
  step();
  end_get();
  expect_abandoned(pulling);
  EXPECT_EQ(bench.count("in_flight"), 1);
}

TEST_F(decoder_end, the_loss_of_the_prefill_worker_fails_what_still_needs_it) {
  limits.decode_batch_max = 3;
  start();
  start_decoding(prefilled(key(1), long_answer(5, 8)));
  give(prefilled(key(2), prompt_of(5)));
  end_get();  // Waits for Released.
  bench.take(RELEASE);
  give(prefilled(key(3), prompt_of(5)));  // Pulls.
  give(prefilled(key(4), prompt_of(5)));  // Waits.
  bench.down(prefill);
  std::vector<attempt_key> failed;
  for (const auto* m : bench.take(FAILED)) {
    EXPECT_EQ(m->root().getFailed().getReason(), wire::FailReason::PEER_LOST);
    EXPECT_EQ(read(m->root().getFailed().getSuspect()), "prefill-1");
    failed.push_back(read(m->root().getFailed().getAttempt()));
  }
  EXPECT_THAT(failed, ElementsAre(key(2), key(4)));
  end_get(messages::get_status::failed);
  EXPECT_EQ(read(take_failed().getAttempt()), key(3));
  EXPECT_EQ(bench.count("in_flight"), 1) << "what decodes needs no prefill worker";
  run_all();
  EXPECT_EQ(take_tokens(key(1)).size(), 8U);
  expect_at_rest();
}

TEST_F(decoder_end, the_loss_of_the_router_disturbs_nobody) {
  start();
  start_decoding(prefilled(key(1), long_answer(5, 8)));
  bench.down(router);
  run_all();
  EXPECT_EQ(take_tokens(key(1)).size(), 8U);
  expect_at_rest();
  router = bench.up("router-1", "router");
  bench.advance_ms(2);
  const auto reports = bench.take(QUEUE_DEPTH);
  EXPECT_EQ(reports.back()->root().getQueueDepth().getLastProcessed(), 0U);
}

}  // namespace
}  // namespace eldr::actors::test
