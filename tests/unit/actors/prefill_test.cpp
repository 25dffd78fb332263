/// A prefill worker at work: chunks, prefix cache, first token, handoff, bounds, load reports.

#include <cstring>

#include "prefill_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using enum wire::Message::Which;

using prefill = prefill_bench;

TEST_F(prefill, chunks_end_at_block_boundaries_and_the_last_one_samples) {
  limits.prefill_chunk_tokens = 10;  // Two blocks of 4.
  start();
  give(key(1), prompt_of(19));
  std::vector<std::pair<std::uint32_t, std::size_t>> chunks;
  while (engine.waiting() > 0) {
    const auto& slice = engine.next().slices.at(0);
    chunks.emplace_back(slice.position, slice.tokens.size());
    EXPECT_TRUE(slice.write_rows);
    EXPECT_EQ(slice.sample.has_value(), slice.position == 16);
    step();
  }
  EXPECT_THAT(chunks, ElementsAre(std::pair(0U, 8U), std::pair(8U, 8U), std::pair(16U, 3U)));
}

TEST_F(prefill, a_chunk_limit_below_a_block_still_makes_progress) {
  limits.prefill_chunk_tokens = 1;
  start();
  give(key(1), prompt_of(6));
  EXPECT_THAT(engine.next().slices.at(0).tokens, SizeIs(4));
  step();
  EXPECT_THAT(engine.next().slices.at(0).tokens, SizeIs(2));
}

TEST_F(prefill, short_prompts_share_a_step_within_its_budget) {
  limits.prefill_chunk_tokens = 12;
  start();
  give(key(1), prompt_of(3, 1));  // Goes off alone: nothing else is there.
  give(key(2), prompt_of(5, 2));
  give(key(3), prompt_of(9, 3));
  step();
  ASSERT_THAT(engine.next().slices, SizeIs(2));
  EXPECT_THAT(engine.next().slices[0].tokens, SizeIs(5)) << "two blocks of the three";
  EXPECT_THAT(engine.next().slices[1].tokens, SizeIs(4)) << "the third";
  EXPECT_EQ(engine.waiting(), 1U) << "one step at a time";
}

TEST_F(prefill, sends_the_first_token_to_the_request_and_hands_off_to_the_router) {
  start();
  const auto prompt = prompt_of(10);
  bench.receive(router, make_prefill_task({.number = 1,
                                           .key = key(1),
                                           .tokens = prompt,
                                           .gen = {6, {77, 0, 0, 1}},
                                           .generated = 2,
                                           .avoid = {"decode-9"}}));
  step();
  const auto& m = bench.take_one(TOKENS);
  EXPECT_EQ(m.session, gateway->session);
  EXPECT_EQ(read(m.root().getTokens().getAttempt()), key(1));
  EXPECT_EQ(m.root().getTokens().getPosition(), 2U);
  EXPECT_EQ(m.root().getTokens().getFinish(), wire::FinishReason::NONE);
  EXPECT_THAT(read(m.root().getTokens().getIds()),
              ElementsAre(first_token_of(prompt, {.seed = 77})));
  EXPECT_THAT(bench.take(HANDOFF), IsEmpty()) << "the signature is not summed yet";
  answer_sums();
  const auto handoff = take_handoff();
  EXPECT_EQ(read(handoff.getAttempt()), key(1));
  const auto kv = read(handoff.getKv());
  EXPECT_EQ(kv.node, "prefill-1");
  EXPECT_EQ(kv.incarnation, 60U);
  EXPECT_EQ(kv.tokens, 10U);
  EXPECT_THAT(kv.blocks, SizeIs(3));
  EXPECT_EQ(handoff.getTokenCount(), 10U);
  EXPECT_EQ(handoff.getFirstToken(), first_token_of(prompt, {.seed = 77}));
  EXPECT_EQ(read(handoff.getSampling()).tokens_max, 6U);
  EXPECT_EQ(read(handoff.getSampling()).sampling.seed, 77U);
  EXPECT_EQ(handoff.getGenerated(), 2U);
  EXPECT_EQ(read(handoff.getLabel()), "chat");
  EXPECT_EQ(handoff.getFingerprint(), actor_bench::fingerprint);
  EXPECT_THAT(read(handoff.getAvoid()), ElementsAre("decode-9"));
}

/// The signature on the wire, as counts.
std::vector<std::uint16_t> cells_of(capnp::Data::Reader signature) {
  std::vector<std::uint16_t> cells(signature.size() / 2);
  std::memcpy(cells.data(), signature.begin(), signature.size());
  return cells;
}

TEST_F(prefill, the_signature_equals_the_recount_whatever_the_cache_held) {
  limits.prefill_chunk_tokens = 8;
  start();
  const auto& g = engine.geometry();
  const auto base = prompt_of(11);
  auto partial = base;
  partial[9] = 200;
  std::uint64_t counter = 0;
  for (const auto& prompt : {base, base, partial, prompt_of(17, 5), base}) {
    const auto k = key(++counter);
    give(k, prompt);
    run_all();
    const auto handoff = take_handoff();
    std::vector<std::uint16_t> choices;
    for (auto token : prompt) {
      for (std::uint32_t layer = 0; layer < g.layers; ++layer) {
        const auto chosen = gpu::hash_choices(g, token, layer);
        choices.insert(choices.end(), chosen.begin(), chosen.end());
      }
    }
    EXPECT_EQ(cells_of(handoff.getSignature()),
              gpu::count_choices(choices, g.layers, g.experts, g.experts_per_token))
        << "request " << counter;
    EXPECT_EQ(handoff.getFirstToken(), first_token_of(prompt));
    release(k, handoff.getKv().getLease());
  }
  expect_at_rest();
}

TEST_F(prefill, a_hit_covers_full_blocks_but_never_the_last_token) {
  start();
  const auto prompt = prompt_of(12);
  release(key(1), leased(key(1), prompt).lease);
  bench.take(TOKENS);
  give(key(2), prompt);
  EXPECT_EQ(engine.next().slices.at(0).position, 8U) << "two of three blocks";
  step();
  EXPECT_EQ(bench.take_one(TOKENS).root().getTokens().getCachedTokens(), 8U);
  give(key(3), prompt_of(13));
  EXPECT_EQ(engine.next().slices.at(0).position, 12U) << "all three, one token to run";
}

TEST_F(prefill, publishes_nothing_of_a_step_that_failed) {
  limits.prefill_chunk_tokens = 8;
  start();
  give(key(1), prompt_of(16));
  step();
  step("out of luck");
  const auto failed = take_failed();
  EXPECT_EQ(failed.getReason(), wire::FailReason::ENGINE);
  EXPECT_THAT(read(failed.getDetail()), HasSubstr("out of luck"));
  EXPECT_EQ(read(failed.getSuspect()), "prefill-1");
  expect_at_rest();
  EXPECT_EQ(bench.count("blocks_cached"), 0);
  EXPECT_EQ(bench.count("engine_errors_total"), 1);
  EXPECT_THAT(take_ended(), ElementsAre(key(1)));
  give(key(2), prompt_of(16));
  EXPECT_EQ(engine.next().slices.at(0).position, 0U);
}

TEST_F(prefill, an_only_token_ends_the_request_without_a_handoff) {
  start();
  give(key(1), prompt_of(5), 1);
  run_all();
  EXPECT_EQ(bench.take_one(TOKENS).root().getTokens().getFinish(), wire::FinishReason::LENGTH);
  EXPECT_THAT(bench.take(HANDOFF), IsEmpty());
  EXPECT_THAT(take_ended(), ElementsAre(key(1)));
  expect_at_rest();
}

TEST_F(prefill, an_end_token_as_the_first_ends_the_request_without_a_handoff) {
  start();
  std::uint32_t salt = 0;
  while (!engine.is_end_token(first_token_of(prompt_of(5, salt)))) {
    ASSERT_LT(++salt, 250U);
  }
  give(key(1), prompt_of(5, salt));
  run_all();
  EXPECT_EQ(bench.take_one(TOKENS).root().getTokens().getFinish(), wire::FinishReason::EOS);
  EXPECT_THAT(bench.take(HANDOFF), IsEmpty());
  expect_at_rest();
}

TEST_F(prefill, refuses_prompts_that_can_never_fit) {
  start();
  for (const auto& prompt : {token_ids{}, prompt_of(block_count * 4 + 1)}) {
    give(key(task_number + 1), prompt);
    EXPECT_EQ(take_failed().getReason(), wire::FailReason::TOO_LARGE);
  }
  EXPECT_THAT(take_ended(), SizeIs(2));
  give(key(9), prompt_of(block_count * 4));
  EXPECT_EQ(engine.waiting(), 1U);
}

TEST_F(prefill, waits_for_blocks_in_order_and_refuses_past_its_queue) {
  limits.prefill_queue_max = 2;
  start();
  give(key(1), prompt_of(block_count * 4, 1));
  give(key(2), prompt_of(8, 2));
  give(key(3), prompt_of(4, 3));
  give(key(4), prompt_of(4, 4));
  const auto failed = take_failed();
  EXPECT_EQ(read(failed.getAttempt()), key(4));
  EXPECT_EQ(failed.getReason(), wire::FailReason::OVERLOADED);
  EXPECT_GT(failed.getRetryAfterMs(), 0U);
  EXPECT_EQ(bench.count("waiting"), 2);
  EXPECT_THAT(take_ended(), ElementsAre(key(4)));
  run_all();
  release(key(1), read(take_handoff().getKv()).lease);
  EXPECT_EQ(bench.count("waiting"), 0);
  EXPECT_EQ(bench.count("running"), 2);
}

TEST_F(prefill, gives_up_on_what_waits_too_long_for_blocks) {
  limits.queue_ms = 100;
  start();
  leased(key(1), prompt_of(block_count * 4, 1));
  give(key(2), prompt_of(4, 2));
  bench.advance_ms(99);
  EXPECT_THAT(bench.take(FAILED), IsEmpty());
  bench.advance_ms(1);
  const auto failed = take_failed();
  EXPECT_EQ(read(failed.getAttempt()), key(2));
  EXPECT_EQ(failed.getReason(), wire::FailReason::OVERLOADED);
  EXPECT_EQ(bench.count("waiting"), 0);
}

TEST_F(prefill, coalesces_its_reports) {
  start();
  for (std::uint32_t i = 1; i <= 5; ++i) {
    give(key(i), prompt_of(4, i));
  }
  EXPECT_THAT(bench.take(QUEUE_DEPTH), SizeIs(1)) << "the first at once";
  bench.advance_ms(1);
  const auto depth = bench.take_one(QUEUE_DEPTH).root().getQueueDepth();
  EXPECT_EQ(depth.getLastProcessed(), 5U);
  EXPECT_EQ(depth.getRunning(), 5U);
  EXPECT_EQ(depth.getTotalBlocks(), block_count);
  EXPECT_EQ(depth.getFreeBlocks(), block_count - 5);
  bench.advance_ms(1000);
  EXPECT_THAT(bench.take(QUEUE_DEPTH), IsEmpty()) << "nothing changed";
}

TEST_F(prefill, reports_to_each_router_its_own_tasks) {
  start();
  const auto second = bench.up("router-2", "router");
  bench.advance_ms(2);
  bench.take_kinds();
  give(key(1), prompt_of(4), 1);
  bench.receive(
      second,
      make_prefill_task({.number = 41, .key = key(2), .tokens = prompt_of(4, 2), .gen = {1, {}}}));
  run_all();
  bench.advance_ms(2);
  std::map<messages::session_id, std::vector<attempt_key>> ended;
  std::map<messages::session_id, std::uint64_t> last;
  for (const auto* m : bench.take(QUEUE_DEPTH)) {
    last[m->session] = m->root().getQueueDepth().getLastProcessed();
    for (auto k : m->root().getQueueDepth().getEnded()) {
      ended[m->session].push_back(read(k));
    }
  }
  EXPECT_EQ(last[router->session], 1U);
  EXPECT_EQ(last[second->session], 41U);
  EXPECT_THAT(ended[router->session], ElementsAre(key(1)));
  EXPECT_THAT(ended[second->session], ElementsAre(key(2)));
}

TEST_F(prefill, a_draining_worker_finishes_and_refuses_the_new) {
  start();
  give(key(1), prompt_of(4));
  bench.put(drain{});
  give(key(2), prompt_of(4, 2));
  const auto failed = take_failed();
  EXPECT_EQ(failed.getReason(), wire::FailReason::DRAINING);
  EXPECT_EQ(read(failed.getSuspect()), "prefill-1");
  bench.advance_ms(2);
  EXPECT_TRUE(bench.take(QUEUE_DEPTH).back()->root().getQueueDepth().getDraining());
  run_all();
  EXPECT_EQ(read(take_handoff().getAttempt()), key(1));
}

}  // namespace
}  // namespace eldr::actors::test
