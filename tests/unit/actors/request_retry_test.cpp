/// A request's attempts: what ends one, what follows, and what the client sees of it.

#include "request_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using enum wire::Message::Which;

using request_retry = request_bench;

constexpr auto all_reasons = {
    wire::FailReason::OVERLOADED,    wire::FailReason::NO_WORKER, wire::FailReason::TOO_LARGE,
    wire::FailReason::INVALID,       wire::FailReason::PEER_LOST, wire::FailReason::PULL_FAILED,
    wire::FailReason::LEASE_EXPIRED, wire::FailReason::ENGINE,    wire::FailReason::DEADLINE,
    wire::FailReason::CANCELLED,     wire::FailReason::DRAINING,  wire::FailReason::GAP,
    wire::FailReason::FINGERPRINT};

class request_reason : public request_bench,
                       public testing::WithParamInterface<wire::FailReason> {};
INSTANTIATE_TEST_SUITE_P(every, request_reason, testing::ValuesIn(all_reasons), [](const auto& of) {
  return "reason_" + std::to_string(static_cast<int>(of.param));
});

TEST_P(request_reason, ends_pauses_or_retries_as_it_should) {
  start();
  decoding(11);
  take_submitted();
  bench.take(GENERATED);
  const auto reason = GetParam();
  const bool final = reason == wire::FailReason::TOO_LARGE || reason == wire::FailReason::INVALID;
  const bool pauses =
      reason == wire::FailReason::OVERLOADED || reason == wire::FailReason::NO_WORKER ||
      reason == wire::FailReason::DRAINING || reason == wire::FailReason::FINGERPRINT;
  fails(reason, "decode-1");
  EXPECT_THAT(take_cancelled(), ElementsAre(router->session, prefill->session, decode->session))
      << "nobody may go on with an attempt that has failed";
  if (final) {
    expect_failed(reason);
    return;
  }
  if (pauses) {
    EXPECT_EQ(take_submitted(), 0U);
    bench.advance_ms(1000);
  }
  EXPECT_EQ(take_submitted(), 2U);
  EXPECT_THAT(bench.take(GENERATED), IsEmpty()) << "the client sees nothing of it";
}

TEST_F(request_retry, resumes_after_the_tokens_delivered) {
  start();
  bench.take(SUBMIT);
  decoding(11);
  tokens(decode, 1, {12});
  bench.take(GENERATED);
  bench.down(decode);
  const auto submit = bench.take_one(SUBMIT).root().getSubmit();
  EXPECT_EQ(read(submit.getAttempt()), key(2));
  EXPECT_THAT(read(submit.getTokens()), ElementsAre(1, 2, 3, 11, 12));
  EXPECT_EQ(submit.getGenerated(), 2U);
  EXPECT_EQ(read(submit.getSampling()).tokens_max, 2U);
  EXPECT_EQ(read(submit.getSampling()).sampling.seed, 77U);
  EXPECT_THAT(read(submit.getAvoid()), ElementsAre("decode-1"));
  EXPECT_EQ(submit.getFingerprint(), actor_bench::fingerprint) << "same numerics from here on";
  decode = bench.up("decode-2", "decode");
  decoding(13, 2, 2);
  tokens(decode, 3, {14}, 2);
  token_ids ids;
  const auto all = bench.take(GENERATED);
  for (const auto* m : all) {
    for (auto id : m->root().getGenerated().getIds()) {
      ids.push_back(id);
    }
  }
  EXPECT_THAT(ids, ElementsAre(13, 14));
  EXPECT_EQ(all.back()->root().getGenerated().getAttempts(), 2U);
  EXPECT_EQ(read(all.back()->root().getGenerated().getDecodeNode()), "decode-2");
}

TEST_F(request_retry, is_free_in_its_numerics_until_a_token_is_out) {
  start();
  bench.take(SUBMIT);
  place(wire::Phase::PREFILL, prefill);
  bench.down(prefill);
  EXPECT_EQ(bench.take_one(SUBMIT).root().getSubmit().getFingerprint(), 0U);
}

TEST_F(request_retry, gives_up_after_retries_max) {
  limits.retries_max = 2;
  start();
  for (std::uint32_t number = 1; number <= 3; ++number) {
    EXPECT_EQ(take_submitted(), number);
    EXPECT_FALSE(bench.ctx.ended);
    fails(wire::FailReason::ENGINE, "decode-1", number);
  }
  EXPECT_EQ(take_submitted(), 0U);
  expect_failed(wire::FailReason::ENGINE);
  EXPECT_EQ(std::get<request_ended>(door->events.back()).attempts, 3U);
}

TEST_F(request_retry, an_error_says_what_happened_and_when_to_come_back) {
  limits.retries_max = 0;
  start();
  fails(wire::FailReason::OVERLOADED);
  const auto last = take_last_generated();
  EXPECT_EQ(read(last.getError()), "because");
  EXPECT_EQ(last.getRetryAfterMs(), 70U);
}

TEST_F(request_retry, pauses_longer_each_time_within_a_bound) {
  limits.retries_max = 20;
  start();
  std::vector<std::int64_t> pauses_ms;
  for (std::uint32_t number = 1; number <= 12; ++number) {
    bench.take(SUBMIT);
    fails(wire::FailReason::OVERLOADED, {}, number);
    pauses_ms.push_back(0);
    while (bench.take(SUBMIT).empty()) {
      bench.advance_ms(1);
      ASSERT_LE(++pauses_ms.back(), 1000);
    }
  }
  EXPECT_LE(pauses_ms.front(), 40);
  // Jitter takes at most half of a doubling pause: two steps on it is never shorter.
  for (std::size_t i = 2; i < 5; ++i) {
    EXPECT_GE(pauses_ms[i], pauses_ms[i - 2]);
  }
  EXPECT_GE(pauses_ms.back(), 500);
}

TEST_F(request_retry, what_a_failed_attempt_still_sends_does_not_revive_it) {
  start();
  take_submitted();
  place(wire::Phase::PREFILL, prefill);
  fails(wire::FailReason::OVERLOADED);
  take_cancelled();
  tokens(prefill, 0, {11});  // Bulk traffic: Failed has overtaken it.
  EXPECT_THAT(take_cancelled(), ElementsAre(prefill->session));
  place(wire::Phase::DECODE, decode);
  fails(wire::FailReason::TOO_LARGE);
  EXPECT_FALSE(bench.ctx.ended);
  bench.advance_ms(1000);
  EXPECT_EQ(take_submitted(), 2U);
}

TEST_F(request_retry, a_stale_attempt_is_ignored_and_cancelled_at_its_worker) {
  start();
  decoding(11);
  bench.take(GENERATED);
  take_submitted();
  fails(wire::FailReason::ENGINE);
  EXPECT_EQ(take_submitted(), 2U);
  take_cancelled();
  tokens(decode, 1, {12}, 1);
  EXPECT_THAT(take_cancelled(1), ElementsAre(decode->session));
  tokens(prefill, 0, {11}, 1);
  EXPECT_THAT(take_cancelled(1), ElementsAre(prefill->session));
  place(wire::Phase::DECODE, decode, 1);
  fails(wire::FailReason::TOO_LARGE, {}, 1);
  EXPECT_THAT(bench.take(GENERATED), IsEmpty());
  EXPECT_FALSE(bench.ctx.ended);
  EXPECT_EQ(take_submitted(), 0U);
}

TEST_F(request_retry, a_gap_fails_the_attempt_and_names_the_worker) {
  start();
  decoding(11);
  bench.take(SUBMIT);
  tokens(decode, 2, {13});
  const auto submit = bench.take_one(SUBMIT).root().getSubmit();
  EXPECT_THAT(read(submit.getTokens()), ElementsAre(1, 2, 3, 11));
  EXPECT_THAT(read(submit.getAvoid()), ElementsAre("decode-1"));
}

TEST_F(request_retry, a_worker_that_ends_too_early_fails_the_attempt) {
  start();
  decoding(11);
  take_submitted();
  tokens(decode, 1, {12}, 1, wire::FinishReason::LENGTH);
  EXPECT_EQ(take_submitted(), 2U);
  EXPECT_FALSE(bench.ctx.ended);
}

TEST_F(request_retry, the_list_of_suspects_is_bounded_and_without_repeats) {
  limits.retries_max = 30;
  start();
  for (std::uint32_t number = 1; number <= 12; ++number) {
    fails(wire::FailReason::ENGINE, "decode-" + std::to_string(number / 2), number);
  }
  const auto all = bench.take(SUBMIT);
  const auto avoid = read(all.back()->root().getSubmit().getAvoid());
  EXPECT_THAT(avoid, UnorderedElementsAre("decode-0", "decode-1", "decode-2", "decode-3",
                                          "decode-4", "decode-5", "decode-6"));
  for (std::uint32_t number = 13; number <= 20; ++number) {
    fails(wire::FailReason::ENGINE, "other-" + std::to_string(number), number);
  }
  EXPECT_EQ(bench.take(SUBMIT).back()->root().getSubmit().getAvoid().size(), 8U);
}

}  // namespace
}  // namespace eldr::actors::test
