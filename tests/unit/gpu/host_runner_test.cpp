#include "gpu/host_runner.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "kv_memory.hpp"

namespace eldr::gpu {
namespace {

using ::testing::HasSubstr;

step_batch batch_of(std::vector<std::vector<token_id>> sequences) {
  step_batch batch;
  block_id next = 0;
  for (auto& tokens : sequences) {
    sequence_slice slice;
    slice.sequence = batch.slices.size() + 100;
    slice.tokens = std::move(tokens);
    slice.blocks = {next, next + 1};
    slice.sample = sampling{};
    next += 2;
    batch.slices.push_back(std::move(slice));
  }
  return batch;
}

class host_runner : public ::testing::Test {
 protected:
  std::unique_ptr<model_runner> runner_ = make_host_runner(open_model(""));
  test::kv_memory memory_{runner_->layout(), runner_->geometry(), 16};
};

TEST_F(host_runner, describes_itself) {
  EXPECT_EQ(runner_->geometry().vocab, 3072u);
  EXPECT_EQ(runner_->layout().block_tokens, 16u);
  EXPECT_EQ(runner_->layout().block_bytes(), 2u * 6 * 16 * 2 * 32 * 4);
  EXPECT_THAT(runner_->backend(), HasSubstr("f32 KV"));
  EXPECT_TRUE(runner_->is_end_token(258));
  EXPECT_FALSE(runner_->is_end_token(44));
  EXPECT_EQ(make_host_runner(open_model("tiny-moe"))->fingerprint(), runner_->fingerprint());
}

TEST_F(host_runner, returns_what_was_asked_for) {
  step_batch batch = batch_of({{257, 44, 45}, {46}});
  batch.slices[1].sample.reset();
  step_result result = runner_->run(batch, memory_.view());
  ASSERT_EQ(result.error, "");
  ASSERT_EQ(result.slices.size(), 2u);
  EXPECT_EQ(result.slices[0].sequence, 100u);
  EXPECT_EQ(result.slices[1].sequence, 101u);
  EXPECT_TRUE(result.slices[0].token);
  EXPECT_FALSE(result.slices[1].token);
  EXPECT_TRUE(result.slices[0].choices.empty());
  EXPECT_GT(result.compute_s, 0);

  batch.record_choices = true;
  batch.hash_logits = true;
  const std::optional<token_id> token = result.slices[0].token;
  result = runner_->run(batch, memory_.view());
  EXPECT_EQ(result.slices[0].token, token);
  EXPECT_NE(result.slices[0].logits_hash, 0u);
  EXPECT_NE(result.slices[1].logits_hash, 0u);
  EXPECT_EQ(result.slices[0].choices.size(), 3u * 6 * 4);
  EXPECT_EQ(result.slices[1].choices.size(), 1u * 6 * 4);
}

TEST_F(host_runner, counts_distinct_experts_of_the_whole_step) {
  step_batch batch = batch_of({{257, 44, 45}, {46, 47}});
  batch.record_choices = true;
  const step_result result = runner_->run(batch, memory_.view());
  ASSERT_EQ(result.distinct_experts.size(), 6u);
  for (std::size_t layer = 0; layer < 6; ++layer) {
    std::set<std::uint16_t> distinct;
    for (const slice_result& slice : result.slices) {
      for (std::size_t at = 4 * layer; at < slice.choices.size(); at += 4 * 6) {
        distinct.insert(slice.choices.begin() + at, slice.choices.begin() + at + 4);
      }
    }
    EXPECT_EQ(result.distinct_experts[layer], distinct.size());
  }
}

TEST_F(host_runner, refuses_bad_steps_and_goes_on) {
  step_batch wrong_token = batch_of({{257}});
  wrong_token.slices[0].tokens = {3072};
  EXPECT_THAT(runner_->run(wrong_token, memory_.view()).error, HasSubstr("vocabulary"));
  step_batch wrong_sampling = batch_of({{257}});
  wrong_sampling.slices[0].sample->top_p = -1;
  EXPECT_THAT(runner_->run(wrong_sampling, memory_.view()).error, HasSubstr("top_p"));
  step_batch wrong_rows = batch_of({{257}});
  wrong_rows.slices[0].write_rows = true;
  wrong_rows.slices[0].position = 5;
  EXPECT_THAT(runner_->run(wrong_rows, memory_.view()).error, HasSubstr("whole blocks"));
  EXPECT_EQ(runner_->run(batch_of({{257}}), memory_.view()).error, "");
}

/// The blocks of a failed step may hold anything; if that is NaN it must come out as an error.
TEST_F(host_runner, reports_logits_that_are_not_numbers) {
  step_batch batch = batch_of({{257}});
  batch.slices[0].position = 3;  // The positions before it hold poison.
  EXPECT_NE(runner_->run(batch, memory_.view()).error, "");
}

TEST(host_runner_options, are_checked) {
  const auto files = open_model("");
  EXPECT_THROW(make_host_runner(files, {.block_tokens = 0}), std::runtime_error);
  EXPECT_THROW(make_host_runner(files, {.block_tokens = 128}), std::runtime_error);
  EXPECT_THROW(make_host_runner(files, {.threads = 0}), std::runtime_error);
  EXPECT_NO_THROW(make_host_runner(files, {.block_tokens = 127}));
}

}  // namespace
}  // namespace eldr::gpu
