/// The forward pass against golden.json.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <set>

#include "golden.hpp"
#include "gpu/host_forward.hpp"
#include "gpu/host_runner.hpp"
#include "gpu/local_generate.hpp"
#include "kv_memory.hpp"

namespace eldr::gpu {
namespace {

/// The default model with access to its logits.
class golden : public ::testing::Test {
 protected:
  golden()
      : files_(open_model("")),
        config_(parse_config(files_->config_json())),
        weights_(files_, config_),
        layout_{.block_tokens = 16,
                .layers = config_.geometry.layers,
                .kv_heads = config_.geometry.kv_heads,
                .head_dim = config_.geometry.head_dim,
                .dtype = kv_dtype::f32},
        forward_(config_, weights_, layout_, select_kernels(), 1),
        memory_(layout_, config_.geometry, 8) {}

  /// Logits after `tokens`, which start at `position`.
  std::vector<float> logits(const std::vector<token_id>& tokens, std::uint32_t position) {
    step_batch batch;
    batch.slices.resize(1);
    batch.slices[0].tokens = tokens;
    batch.slices[0].position = position;
    batch.slices[0].blocks = test::block_range(0, 8);
    step_result result;
    result.slices.resize(1);
    forward_.run_layers(batch, memory_.view(), result);
    const std::uint32_t slice = 0;
    const row_buffer& rows = forward_.logits(batch, {&slice, 1});
    return {rows.row(0), rows.row(0) + rows.cols()};
  }

  std::shared_ptr<const model_files> files_;
  model_config config_;
  model_weights weights_;
  kv_layout layout_;
  host_forward forward_;
  test::kv_memory memory_;
  std::vector<test::golden_case> cases_ = test::load_golden();
};

TEST_F(golden, has_all_fourteen_prompts) {
  EXPECT_EQ(cases_.size(), 14u);
}

TEST_F(golden, experts_of_every_prompt_token_agree) {
  const auto runner = make_host_runner(files_);
  for (const test::golden_case& c : cases_) {
    local_options options;
    options.tokens_max = 1;
    options.record_choices = true;
    const local_result result = local_generate(*runner, c.prompt, {}, options);
    std::size_t at = 0;
    for (std::size_t token = 0; token < c.prompt.size(); ++token) {
      for (const auto& expected : c.experts[token]) {
        const std::set<std::uint16_t> wanted(expected.begin(), expected.end());
        const auto* first = result.choices.data() + at;
        const std::set<std::uint16_t> chosen(first, first + expected.size());
        EXPECT_EQ(chosen, wanted) << c.label << ", token " << token;
        at += expected.size();
      }
    }
    EXPECT_EQ(at, result.choices.size());
  }
}

TEST_F(golden, largest_logits_agree) {
  for (const test::golden_case& c : cases_) {
    const std::vector<float> row = logits(c.prompt, 0);
    ASSERT_EQ(c.top_logits.size(), 8u);
    for (const auto& [token, logit] : c.top_logits) {
      EXPECT_NEAR(row[token], logit, 2e-2) << c.label << ", token " << token;
    }
  }
}

TEST_F(golden, greedy_tokens_agree) {
  const auto runner = make_host_runner(files_);
  for (const test::golden_case& c : cases_) {
    if (c.margin_min >= 0.005) {
      local_options options;
      options.tokens_max = static_cast<std::uint32_t>(c.greedy.size());
      EXPECT_EQ(local_generate(*runner, c.prompt, {}, options).tokens, c.greedy) << c.label;
    }
  }
}

/// Where first and second are closer than float32 can tell, the golden token is fed back, and has
/// to be within that distance of our first.
TEST_F(golden, greedy_tokens_agree_at_near_ties) {
  int near_ties = 0;
  for (const test::golden_case& c : cases_) {
    if (c.margin_min >= 0.005) {
      continue;
    }
    ++near_ties;
    std::vector<float> row = logits(c.prompt, 0);
    auto position = static_cast<std::uint32_t>(c.prompt.size());
    for (const token_id token : c.greedy) {
      EXPECT_GE(row[token], *std::max_element(row.begin(), row.end()) - 0.005F) << c.label;
      row = logits({token}, position++);
    }
  }
  EXPECT_EQ(near_ties, 3);
}

}  // namespace
}  // namespace eldr::gpu
