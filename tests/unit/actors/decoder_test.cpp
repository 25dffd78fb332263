/// A decode worker at work: pull, release, continuous batch, bounds.

#include "decoder_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;
using testing::SizeIs;
using enum wire::Message::Which;

using decoder = decoder_bench;

TEST_F(decoder, pulls_releases_and_decodes_what_one_process_would) {
  start();
  const auto prompt = long_answer(10, 8);
  const auto task = prefilled(key(1), prompt);
  give(task);
  ASSERT_THAT(bench.ctx.net.gets, SizeIs(1));
  EXPECT_EQ(bench.ctx.net.gets[0].session, prefill->session);
  EXPECT_EQ(bench.ctx.net.gets[0].region, 0U);
  EXPECT_THAT(bench.ctx.net.gets[0].ranges, SizeIs(3)) << "the prompt's blocks, one range each";
  EXPECT_THAT(bench.take(RELEASE), IsEmpty()) << "not before they are read";
  end_get();
  const auto& m = bench.take_one(RELEASE);
  EXPECT_EQ(m.session, prefill->session);
  EXPECT_EQ(m.root().getRelease().getLease(), task.kv.lease);
  EXPECT_FALSE(m.root().getRelease().getAbandon());
  EXPECT_EQ(engine.waiting(), 0U) << "not before the lease is known to have held";
  EXPECT_THAT(bench.take(TOKENS), IsEmpty());
  answer_release(task);
  run_all();
  EXPECT_THAT(take_tokens(key(1)), ElementsAreArray(answer_to(prompt, 8)));
  EXPECT_THAT(take_ended(), ElementsAre(key(1)));
  EXPECT_THAT(bench.take(RELEASE), IsEmpty());
  expect_at_rest();
}

TEST_F(decoder, says_how_the_answer_ended) {
  start();
  start_decoding(prefilled(key(1), long_answer(5, 3), 3));
  run_all();
  EXPECT_EQ(bench.take(TOKENS).back()->root().getTokens().getFinish(), wire::FinishReason::LENGTH);
  std::uint32_t salt = 0;
  const auto ends_in_decode = [](const token_ids& answer) {
    return answer.size() > 1 && answer.back() == end_token();
  };
  while (!ends_in_decode(answer_to(prompt_of(5, salt), 6))) {
    ASSERT_LT(++salt, 250U);
  }
  start_decoding(prefilled(key(2), prompt_of(5, salt), 6));
  run_all();
  EXPECT_EQ(bench.take(TOKENS).back()->root().getTokens().getFinish(), wire::FinishReason::EOS);
  expect_at_rest();
}

TEST_F(decoder, a_resumed_request_goes_on_at_its_position) {
  start();
  const auto prompt = long_answer(6, 7);
  const auto whole = answer_to(prompt, 7);
  auto resumed = prompt;
  resumed.insert(resumed.end(), whole.begin(), whole.begin() + 3);
  auto task = prefilled(key(1, 2), resumed, 4);
  task.generated = 3;
  EXPECT_EQ(task.first_token, whole[3]);
  start_decoding(task);
  run_all();
  EXPECT_THAT(take_tokens(key(1, 2), 3), ElementsAreArray(whole.begin() + 3, whole.end()));
}

TEST_F(decoder, sequences_share_steps_and_do_not_disturb_each_other) {
  start();
  const auto first = long_answer(5, 8, 1);
  const auto second = long_answer(9, 8, 50);
  start_decoding(prefilled(key(1), first));
  step();
  start_decoding(prefilled(key(2), second));
  step();
  EXPECT_THAT(engine.next().slices, SizeIs(2)) << "the newcomer joins the next step";
  run_all();
  token_ids one;
  token_ids two;
  for (const auto* m : bench.take(TOKENS)) {
    const auto tokens = m->root().getTokens();
    auto& out = read(tokens.getAttempt()) == key(1) ? one : two;
    EXPECT_EQ(tokens.getPosition(), out.size());
    out.push_back(tokens.getIds()[0]);
  }
  EXPECT_EQ(one, answer_to(first, 8));
  EXPECT_EQ(two, answer_to(second, 8));
  expect_at_rest();
}

TEST_F(decoder, holds_no_more_than_a_batch) {
  limits.decode_batch_max = 2;
  start();
  const auto a = prefilled(key(1), long_answer(4, 3, 0), 3);
  const auto b = prefilled(key(2), long_answer(4, 3, 40), 3);
  const auto c = prefilled(key(3), long_answer(4, 3, 80), 3);
  give(a);
  give(b);
  give(c);
  EXPECT_THAT(bench.ctx.net.gets, SizeIs(2));
  EXPECT_EQ(bench.count("waiting"), 1);
  end_get();
  answer_release(a);
  run_all();
  EXPECT_EQ(bench.count("waiting"), 0) << "the end of the first lets the third in";
  EXPECT_THAT(bench.ctx.net.gets, SizeIs(2));
}

TEST_F(decoder, reserves_every_block_that_a_request_may_need) {
  start();
  // 20 prompt tokens and 8 to come, of which the last is never stored: 27, 7 blocks.
  const auto a = prefilled(key(1), long_answer(20, 8), 8);
  give(a);
  EXPECT_EQ(bench.count("blocks_pinned"), 7);
  const auto b = prefilled(key(2), prompt_of(20, 9), 8);
  const auto small = prefilled(key(3), prompt_of(3, 9), 2);
  give(b);
  give(small);
  EXPECT_EQ(bench.count("waiting"), 2) << "a small one does not overtake";
  end_get();
  answer_release(a);
  run_all();
  EXPECT_EQ(bench.count("waiting"), 0);
  EXPECT_THAT(bench.ctx.net.gets, SizeIs(2));
}

TEST_F(decoder, a_pull_that_cannot_begin_does_not_keep_its_place) {
  limits.decode_batch_max = 1;
  start();
  const auto running = prefilled(key(1), long_answer(4, 2), 2);
  give(running);
  auto lost = prefilled(key(2), prompt_of(4, 1));
  lost.kv.node = "prefill-9";
  const auto next = prefilled(key(3), prompt_of(4, 2));
  give(lost);
  give(next);
  bench.advance_ms(50);
  end_get();
  answer_release(running);
  run_all();
  EXPECT_EQ(take_failed().getReason(), wire::FailReason::PULL_FAILED);
  EXPECT_THAT(bench.ctx.net.gets, SizeIs(1)) << "the next one began at once";
  EXPECT_EQ(bench.count("waiting"), 0);
}

TEST_F(decoder, reports_what_people_and_policies_want_to_know) {
  start();
  start_decoding(prefilled(key(1), long_answer(5, 8, 1)));
  give(prefilled(key(2), prompt_of(5, 2)));
  step();
  bench.advance_ms(2);
  const auto reports = bench.take(QUEUE_DEPTH);
  const auto depth = reports.back()->root().getQueueDepth();
  EXPECT_EQ(depth.getLastProcessed(), 2U);
  EXPECT_EQ(depth.getRunning(), 2U);
  EXPECT_EQ(depth.getSlot(), 2);
  EXPECT_EQ(depth.getTotalBlocks(), block_count);
  EXPECT_EQ(depth.getFreeBlocks(), block_count - 6);
}

}  // namespace
}  // namespace eldr::actors::test
