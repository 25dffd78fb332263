/// A request on its way to its last token, without faults.

#include "request_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using enum wire::Message::Which;

using request = request_bench;

TEST_F(request, submits_its_prompt_at_once) {
  start();
  const auto& m = bench.take_one(SUBMIT);
  const auto submit = m.root().getSubmit();
  EXPECT_EQ(m.session, router->session);
  EXPECT_EQ(read(submit.getAttempt()), key(1));
  EXPECT_THAT(read(submit.getTokens()), ElementsAre(1, 2, 3));
  EXPECT_EQ(read(submit.getSampling()).tokens_max, 4U);
  EXPECT_EQ(read(submit.getSampling()).sampling.seed, 77U);
  EXPECT_EQ(submit.getGenerated(), 0U);
  EXPECT_EQ(submit.getFingerprint(), 0U);
  EXPECT_EQ(submit.getAvoid().size(), 0U);
  EXPECT_EQ(read(submit.getLabel()), "chat");
}

TEST_F(request, streams_each_token_once_and_says_who_served) {
  start();
  bench.advance_ms(10);
  decoding(11);
  bench.advance_ms(20);
  tokens(decode, 1, {12, 13});
  tokens(decode, 3, {14}, 1, wire::FinishReason::LENGTH);
  token_ids ids;
  std::string text;
  const auto all = bench.take(GENERATED);
  for (const auto* m : all) {
    const auto g = m->root().getGenerated();
    EXPECT_EQ(g.getClientRequest(), 33U);
    EXPECT_EQ(g.getPosition(), ids.size());
    EXPECT_EQ(g.getFinish() != wire::FinishReason::NONE, m == all.back());
    for (auto id : g.getIds()) {
      ids.push_back(id);
    }
    text += read(g.getText());
  }
  EXPECT_THAT(ids, ElementsAre(11, 12, 13, 14));
  EXPECT_EQ(text, "[11][12][13][14].");
  const auto last = all.back()->root().getGenerated();
  EXPECT_EQ(last.getFinish(), wire::FinishReason::LENGTH);
  EXPECT_EQ(last.getFailReason(), wire::FailReason::NONE);
  EXPECT_EQ(read(last.getPrefillNode()), "prefill-1");
  EXPECT_EQ(read(last.getDecodeNode()), "decode-1");
  EXPECT_EQ(last.getAttempts(), 1U);
  EXPECT_EQ(last.getPromptTokens(), 3U);
  EXPECT_EQ(last.getTtftUs(), 10'000U);
  EXPECT_EQ(last.getTotalUs(), 30'000U);
  EXPECT_EQ(last.getSeed(), 77U);
}

TEST_F(request, ends_with_its_gateway_told_and_nothing_cancelled) {
  start();
  decoding(11);
  tokens(decode, 1, {12, 13, 14}, 1, wire::FinishReason::LENGTH);
  EXPECT_TRUE(bench.ctx.ended);
  ASSERT_EQ(door->count<request_ended>(), 1U);
  const auto& ended = std::get<request_ended>(door->events.front());
  EXPECT_EQ(ended.counter, counter);
  EXPECT_EQ(ended.finish, wire::FinishReason::LENGTH);
  EXPECT_EQ(ended.attempts, 1U);
  EXPECT_EQ(ended.tokens, 4U);
  EXPECT_THAT(bench.take(CANCEL), IsEmpty());
}

TEST_F(request, an_end_token_has_no_text) {
  start();
  decoding(11);
  bench.take(GENERATED);
  tokens(decode, 1, {test_codec::end_token}, 1, wire::FinishReason::EOS);
  const auto last = take_last_generated();
  EXPECT_EQ(last.getFinish(), wire::FinishReason::EOS);
  EXPECT_EQ(read(last.getText()), ".");
  EXPECT_THAT(read(last.getIds()), ElementsAre(test_codec::end_token));
}

TEST_F(request, tests_the_stop_conditions_itself) {
  start();
  decoding(11);
  // The worker's word for the end is missing; its loss right after does not matter.
  tokens(decode, 1, {12, 13, 14});
  EXPECT_EQ(take_last_generated().getFinish(), wire::FinishReason::LENGTH);
  bench.down(decode);
  EXPECT_EQ(take_submitted(), 1U) << "the first attempt only";
}

TEST_F(request, tokens_past_the_end_are_not_delivered) {
  start();
  decoding(11);
  tokens(decode, 1, {12, 13, 14, 15});
  const auto last = take_last_generated();
  EXPECT_EQ(last.getFinish(), wire::FinishReason::LENGTH);
  EXPECT_THAT(read(last.getIds()), ElementsAre(12, 13, 14));
}

TEST_F(request, may_hear_of_tokens_before_it_hears_of_places) {
  start();
  tokens(prefill, 0, {11});
  tokens(decode, 0, {11});
  place(wire::Phase::PREFILL, prefill);
  place(wire::Phase::DECODE, decode);
  tokens(decode, 1, {12, 13, 14});
  EXPECT_EQ(take_last_generated().getFinish(), wire::FinishReason::LENGTH);
  EXPECT_EQ(take_submitted(), 1U);
}

TEST_F(request, a_first_token_that_comes_late_does_not_turn_decode_back) {
  start();
  place(wire::Phase::PREFILL, prefill);
  place(wire::Phase::DECODE, decode);
  tokens(decode, 0, {11});
  tokens(prefill, 0, {11});
  take_submitted();
  bench.down(prefill);
  EXPECT_EQ(take_submitted(), 0U) << "the decoder has taken over and needs it no more";
  bench.advance_ms(limits.decode_progress_ms);
  EXPECT_EQ(take_submitted(), 2U);
}

TEST_F(request, a_client_that_leaves_ends_it_and_its_work) {
  start();
  prefilled(11);
  place(wire::Phase::DECODE, decode);
  bench.put(stop_request{});
  EXPECT_THAT(take_cancelled(), ElementsAre(router->session, prefill->session, decode->session));
  EXPECT_EQ(take_last_generated().getFinish(), wire::FinishReason::CANCELLED);
  EXPECT_EQ(std::get<request_ended>(door->events.at(0)).finish, wire::FinishReason::CANCELLED);
  EXPECT_TRUE(bench.ctx.ended);
}

TEST_F(request, waits_for_a_router_when_there_is_none) {
  client = open("client-1", "client");
  run();
  EXPECT_EQ(take_submitted(), 0U);
  bench.up("prefill-1", "prefill");
  EXPECT_EQ(take_submitted(), 0U);
  router = bench.up("router-1", "router");
  EXPECT_EQ(take_submitted(), 1U);
}

TEST_F(request, waits_for_a_router_no_longer_than_its_total_time) {
  client = open("client-1", "client");
  run();
  bench.advance_ms(limits.total_ms - 1);
  EXPECT_FALSE(bench.ctx.ended);
  bench.advance_ms(1);
  expect_failed(wire::FailReason::DEADLINE);
}

TEST_F(request, spreads_over_routers_and_turns_to_another_on_a_retry) {
  client = open("client-1", "client");
  const auto a = open("router-a", "router");
  const auto b = open("router-b", "router");
  router = a;
  run();
  const auto first = bench.take_one(SUBMIT).session;
  fails(wire::FailReason::PEER_LOST);
  const auto second = bench.take_one(SUBMIT).session;
  EXPECT_NE(first, second);
  EXPECT_TRUE(first == a->session || first == b->session);
}

}  // namespace
}  // namespace eldr::actors::test
