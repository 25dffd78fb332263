/// Tasks that a decode worker does not take up. Whatever the reason, the lease is given back, and
/// the router's count comes down.

#include "decoder_bench.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using enum wire::Message::Which;

class decoder_refusal : public decoder_bench {
 protected:
  void expect_refused(const decode_task_fields& task, wire::FailReason reason) {
    give(task);
    EXPECT_EQ(take_failed().getReason(), reason);
    expect_abandoned(task);
    EXPECT_THAT(bench.ctx.net.gets, IsEmpty());
    EXPECT_THAT(take_ended(), ElementsAre(task.key));
    expect_at_rest();
  }
};

TEST_F(decoder_refusal, a_task_that_its_cancel_overtook) {
  start();
  const auto task = prefilled(key(1), prompt_of(5));
  bench.receive(gateway, make_cancel(wire::ActorKind::DECODER, key(1)));
  give(task);
  EXPECT_THAT(bench.take(FAILED), IsEmpty()) << "nobody waits for an answer";
  expect_abandoned(task);
  EXPECT_THAT(take_ended(), ElementsAre(key(1)));
}

TEST_F(decoder_refusal, a_task_of_an_unknown_gateway) {
  start();
  const auto task = prefilled({{999, 1}, 1}, prompt_of(5));
  give(task);
  expect_abandoned(task);
  EXPECT_THAT(take_ended(), ElementsAre(task.key));
}

TEST_F(decoder_refusal, anything_while_draining) {
  start();
  bench.put(drain{});
  expect_refused(prefilled(key(1), prompt_of(5)), wire::FailReason::DRAINING);
}

TEST_F(decoder_refusal, a_task_that_contradicts_itself) {
  start();
  auto one_token = prefilled(key(1), prompt_of(5));
  one_token.gen.tokens_max = 1;
  expect_refused(one_token, wire::FailReason::INVALID);
  auto no_kv = prefilled(key(2), prompt_of(5));
  no_kv.kv.tokens = 0;
  no_kv.kv.blocks.clear();
  expect_refused(no_kv, wire::FailReason::INVALID);
  auto too_few = prefilled(key(3), prompt_of(9));
  too_few.kv.blocks.pop_back();
  expect_refused(too_few, wire::FailReason::INVALID);
  auto too_many = prefilled(key(4), prompt_of(9));
  too_many.kv.blocks.push_back(0);
  expect_refused(too_many, wire::FailReason::INVALID);
}

TEST_F(decoder_refusal, a_request_larger_than_the_pool) {
  start();
  // 8 + 41 - 1 = 48 tokens are 12 blocks.
  expect_refused(prefilled(key(1), prompt_of(8), 42), wire::FailReason::TOO_LARGE);
  give(prefilled(key(2), prompt_of(8), 41));
  EXPECT_EQ(bench.count("blocks_pinned"), block_count);
}

TEST_F(decoder_refusal, lengths_whose_sum_would_wrap) {
  start();
  expect_refused(prefilled(key(1), prompt_of(8), 0xffffffff), wire::FailReason::TOO_LARGE);
  auto endless = prefilled(key(2), prompt_of(8));
  endless.kv.tokens = 0xffffffff;
  endless.kv.blocks.clear();
  expect_refused(endless, wire::FailReason::TOO_LARGE);
}

TEST_F(decoder_refusal, more_than_the_queue_holds) {
  limits.decode_batch_max = 1;
  limits.decode_queue_max = 1;
  start();
  give(prefilled(key(1), prompt_of(5, 1)));
  give(prefilled(key(2), prompt_of(5, 2)));
  const auto third = prefilled(key(3), prompt_of(5, 3));
  give(third);
  const auto failed = take_failed();
  EXPECT_EQ(failed.getReason(), wire::FailReason::OVERLOADED);
  EXPECT_EQ(read(failed.getSuspect()), "decode-1");
  EXPECT_GT(failed.getRetryAfterMs(), 0U);
  expect_abandoned(third);
  EXPECT_EQ(bench.count("waiting"), 1);
}

TEST_F(decoder_refusal, a_kv_reference_into_another_incarnation) {
  start();
  auto task = prefilled(key(1), prompt_of(5));
  ++task.kv.incarnation;
  give(task);
  const auto failed = take_failed();
  EXPECT_EQ(failed.getReason(), wire::FailReason::PULL_FAILED);
  EXPECT_EQ(read(failed.getSuspect()), "prefill-1");
  EXPECT_THAT(bench.ctx.net.gets, IsEmpty());
  EXPECT_THAT(bench.take(RELEASE), IsEmpty()) << "that incarnation's leases are gone";
  expect_at_rest();
}

TEST_F(decoder_refusal, another_kv_layout) {
  start();
  prefill = bench.up({"prefill-2", "prefill", 0, actor_bench::fingerprint, 1234, {}});
  auto task = prefilled(key(1), prompt_of(5));
  task.kv.node = "prefill-2";
  expect_refused(task, wire::FailReason::INVALID);
}

TEST_F(decoder_refusal, an_older_attempt_than_the_one_it_has) {
  start();
  const auto newer = prefilled(key(1, 2), prompt_of(5));
  const auto older = prefilled(key(1, 1), prompt_of(5));
  give(newer);
  give(older);
  expect_abandoned(older);
  EXPECT_EQ(bench.count("in_flight"), 1);
}

}  // namespace
}  // namespace eldr::actors::test
