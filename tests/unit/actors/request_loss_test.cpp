/// Lost peers and deadlines, phase by phase: what the attempt depends on ends it, all else does
/// not.

#include "request_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using enum wire::Message::Which;

class request_loss : public request_bench {
 protected:
  /// Whether the end of a session makes the request try again at once.
  bool retries_after(const peer_ptr& lost) {
    take_submitted();
    bench.down(lost);
    return take_submitted() != 0;
  }
  /// A second router, so that the loss of the first can be answered.
  void start_with_spare() {
    open("router-9", "router");
    start();
    router = peers.find_session(bench.take_one(SUBMIT).session);
  }
};

TEST_F(request_loss, routing_depends_on_the_router_only) {
  start_with_spare();
  EXPECT_FALSE(retries_after(prefill)) << "not placed anywhere yet";
  EXPECT_FALSE(retries_after(decode));
  EXPECT_TRUE(retries_after(router));
}

TEST_F(request_loss, with_the_last_router_it_waits_for_another) {
  start();
  EXPECT_FALSE(retries_after(router));
  bench.up("router-2", "router");
  EXPECT_EQ(take_submitted(), 2U);
}

TEST_F(request_loss, prefill_depends_on_the_router) {
  start_with_spare();
  place(wire::Phase::PREFILL, prefill);
  EXPECT_FALSE(retries_after(decode));
  EXPECT_TRUE(retries_after(router));
  EXPECT_THAT(take_cancelled(), ElementsAre(prefill->session));
}

TEST_F(request_loss, prefill_depends_on_its_worker) {
  start();
  place(wire::Phase::PREFILL, prefill);
  EXPECT_TRUE(retries_after(prefill));
  EXPECT_THAT(take_cancelled(), ElementsAre(router->session));
}

TEST_F(request_loss, handoff_depends_on_the_router_until_decode_is_placed) {
  start_with_spare();
  prefilled(11);
  EXPECT_TRUE(retries_after(router));
}

TEST_F(request_loss, handoff_depends_on_both_workers_once_decode_is_placed) {
  start_with_spare();
  prefilled(11);
  place(wire::Phase::DECODE, decode);
  EXPECT_FALSE(retries_after(router));
  EXPECT_TRUE(retries_after(prefill)) << "its blocks are not known to be read";
  EXPECT_THAT(take_cancelled(), ElementsAre(decode->session));
}

TEST_F(request_loss, handoff_depends_on_the_decoder) {
  start();
  prefilled(11);
  place(wire::Phase::DECODE, decode);
  EXPECT_TRUE(retries_after(decode));
}

TEST_F(request_loss, decode_depends_on_the_decoder_only) {
  start_with_spare();
  decoding(11);
  EXPECT_FALSE(retries_after(router));
  EXPECT_FALSE(retries_after(prefill));
  EXPECT_TRUE(retries_after(decode));
}

TEST_F(request_loss, a_pause_depends_on_nobody) {
  start();
  decoding(11);
  fails(wire::FailReason::OVERLOADED);
  EXPECT_FALSE(retries_after(decode));
  EXPECT_FALSE(retries_after(prefill));
  bench.advance_ms(1000);
  EXPECT_EQ(take_submitted(), 2U);
}

TEST_F(request_loss, a_place_that_this_node_has_no_session_with_is_lost) {
  start();
  take_submitted();
  bench.receive(router, make_placed(key(), wire::Phase::PREFILL, {"prefill-9", {}, 5, 0, 0, {}}));
  const auto submit = bench.take_one(SUBMIT).root().getSubmit();
  EXPECT_THAT(read(submit.getAvoid()), ElementsAre("prefill-9"));
}

TEST_F(request_loss, a_place_at_an_earlier_incarnation_is_lost) {
  start();
  take_submitted();
  auto earlier = prefill->id;
  --earlier.incarnation;
  bench.receive(router, make_placed(key(), wire::Phase::PREFILL, earlier));
  EXPECT_EQ(take_submitted(), 2U);
}

TEST_F(request_loss, the_session_of_a_restarted_worker_is_not_the_one_that_is_needed) {
  start();
  place(wire::Phase::PREFILL, prefill);
  const auto again = bench.up("prefill-1", "prefill");
  EXPECT_FALSE(retries_after(again));
  EXPECT_TRUE(retries_after(prefill));
}

class request_deadline : public request_loss {
 protected:
  /// Waits `ms` in all; the retry comes with the last of them, and suspects `suspect`.
  void expect_retry_after(std::int64_t ms, const std::string& suspect) {
    take_submitted();
    bench.advance_ms(ms - 1);
    EXPECT_EQ(take_submitted(), 0U);
    bench.advance_ms(1);
    const auto found = bench.take(SUBMIT);
    ASSERT_EQ(found.size(), 1U);
    const auto avoid = read(found[0]->root().getSubmit().getAvoid());
    EXPECT_EQ(avoid, suspect.empty() ? std::vector<std::string>{} : std::vector{suspect});
  }
};

TEST_F(request_deadline, routing) {
  start();
  expect_retry_after(limits.route_ms, {});
}

TEST_F(request_deadline, prefill) {
  start();
  place(wire::Phase::PREFILL, request_bench::prefill);
  expect_retry_after(limits.queue_ms + limits.prefill_ms, "prefill-1");
}

TEST_F(request_deadline, handoff) {
  start();
  prefilled(11);
  expect_retry_after(limits.route_ms + limits.queue_ms + limits.pull_ms, "prefill-1");
}

TEST_F(request_deadline, decode_starts_anew_with_every_token) {
  start();
  decoding(11);
  bench.advance_ms(limits.decode_progress_ms - 1);
  tokens(decode, 1, {12});
  expect_retry_after(limits.decode_progress_ms, "decode-1");
}

TEST_F(request_deadline, the_total_one_ends_the_request_whatever_its_progress) {
  limits.total_ms = 25'000;
  start();
  decoding(11);
  bench.advance_ms(9'000);
  tokens(decode, 1, {12});
  bench.advance_ms(9'000);
  tokens(decode, 2, {13});
  bench.advance_ms(6'999);
  EXPECT_FALSE(bench.ctx.ended);
  bench.advance_ms(1);
  EXPECT_THAT(take_cancelled(),
              ElementsAre(router->session, request_bench::prefill->session, decode->session));
  const auto all = bench.take(GENERATED);
  const auto last = all.back()->root().getGenerated();
  EXPECT_EQ(last.getFailReason(), wire::FailReason::DEADLINE);
  EXPECT_THAT(read(last.getError()), HasSubstr("25000 ms"));
  EXPECT_THAT(read(last.getIds()), IsEmpty()) << "what was delivered stays delivered";
  EXPECT_TRUE(bench.ctx.ended);
}

}  // namespace
}  // namespace eldr::actors::test
