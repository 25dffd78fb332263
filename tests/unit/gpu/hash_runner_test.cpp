#include "gpu/hash_runner.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "kv_memory.hpp"

namespace eldr::gpu {
namespace {

using test::block_range;
using test::kv_memory;
using ::testing::HasSubstr;

std::vector<token_id> random_prompt(std::mt19937& rng, std::uint32_t count) {
  std::vector<token_id> prompt(count);
  std::generate(prompt.begin(), prompt.end(), [&] { return rng() % 250; });
  return prompt;
}

sequence_slice slice_of(std::vector<token_id> tokens, std::uint32_t position,
                        std::vector<block_id> blocks) {
  sequence_slice slice;
  slice.tokens = std::move(tokens);
  slice.position = position;
  slice.blocks = std::move(blocks);
  return slice;
}

/// Prefills in chunks and decodes one by one.
std::vector<token_id> generate(model_runner& runner, const engine_memory& memory,
                               std::vector<token_id> tokens, const sampling& sampling,
                               std::uint32_t tokens_max, std::uint32_t chunk,
                               std::uint32_t start = 0) {
  const std::vector<block_id> blocks = block_range(0, memory.block_count);
  std::vector<token_id> out;
  std::uint32_t position = start;
  while (out.size() < tokens_max) {
    const std::uint32_t count =
        std::min<std::uint32_t>(chunk, static_cast<std::uint32_t>(tokens.size()) - position);
    step_batch batch;
    batch.slices.push_back(
        slice_of({tokens.begin() + position, tokens.begin() + position + count}, position, blocks));
    position += count;
    if (position == tokens.size()) {
      batch.slices[0].sample = sampling;
    }
    const step_result result = runner.run(batch, memory);
    EXPECT_EQ(result.error, "");
    if (const auto token = result.slices.at(0).token) {
      out.push_back(*token);
      tokens.push_back(*token);
      if (runner.is_end_token(*token)) {
        break;
      }
    }
  }
  return out;
}

TEST(hash_runner, generates_the_reference_tokens_whatever_the_chunk) {
  const auto runner = make_hash_runner();
  std::mt19937 rng(1);
  std::size_t ended = 0;
  for (int round = 0; round < 60; ++round) {
    const auto prompt = random_prompt(rng, 1 + rng() % 100);
    const sampling sampling{.seed = rng()};
    kv_memory memory(runner->layout(), runner->geometry(), 32);
    const auto expected = hash_model_tokens(prompt, sampling, 40);
    EXPECT_EQ(generate(*runner, memory.view(), prompt, sampling, 40, 1 + rng() % 64), expected);
    ended += expected.back() == hash_end_token(runner->geometry());
  }
  EXPECT_GT(ended, 10u);
  EXPECT_LT(ended, 50u);
}

TEST(hash_runner, fills_the_context_to_its_last_position) {
  hash_runner_options options;
  options.geometry.context_max = 24;
  const auto runner = make_hash_runner(options);
  kv_memory memory(runner->layout(), runner->geometry(), 2);
  const std::vector<token_id> prompt(24, 5);
  const auto expected = hash_model_tokens(prompt, {}, 10, options);
  EXPECT_EQ(expected.size(), 1u);
  EXPECT_EQ(generate(*runner, memory.view(), prompt, {}, 1, 16), expected);
}

TEST(hash_runner, shows_any_changed_byte_of_kv) {
  const auto runner = make_hash_runner();
  std::mt19937 rng(2);
  const auto prompt = random_prompt(rng, 50);
  kv_memory memory(runner->layout(), runner->geometry(), 4);
  step_batch fill;
  fill.slices.push_back(slice_of({prompt.begin(), prompt.end() - 1}, 0, block_range(0, 4)));
  ASSERT_EQ(runner->run(fill, memory.view()).error, "");
  step_batch last;
  last.hash_logits = true;
  last.slices.push_back(slice_of({prompt.back()}, 49, block_range(0, 4)));
  const std::uint64_t hash = runner->run(last, memory.view()).slices[0].logits_hash;
  const kv_layout layout = runner->layout();
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t position = rng() % 49;
    const std::size_t at = position / 16 * layout.block_bytes() +
                           rng() % (2 * layout.layers) * layout.plane_bytes() +
                           position % 16 * layout.row_bytes() + rng() % layout.row_bytes();
    const std::byte flip{static_cast<std::uint8_t>(1u << rng() % 8)};
    memory.view().kv[at] ^= flip;
    EXPECT_NE(runner->run(last, memory.view()).slices[0].logits_hash, hash);
    memory.view().kv[at] ^= flip;
  }
  EXPECT_EQ(runner->run(last, memory.view()).slices[0].logits_hash, hash);
}

TEST(hash_runner, sets_rows_to_the_recount_of_choices) {
  const auto runner = make_hash_runner();
  const model_geometry& geometry = runner->geometry();
  std::mt19937 rng(3);
  kv_memory memory(runner->layout(), geometry, 4);
  for (int round = 0; round < 3; ++round) {  // Later rounds reuse the blocks.
    const auto prompt = random_prompt(rng, 55);
    step_batch batch;
    batch.record_choices = true;
    batch.slices.push_back(slice_of(prompt, 0, {3, 1, 0, 2}));
    batch.slices[0].write_rows = true;
    const step_result result = runner->run(batch, memory.view());
    ASSERT_EQ(result.error, "");
    std::vector<int> rows(4 * memory.row_cells());
    const auto& choices = result.slices[0].choices;
    ASSERT_EQ(choices.size(), 55u * 2 * 2);
    std::vector<std::vector<bool>> seen(2, std::vector<bool>(geometry.experts));
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const std::size_t token = i / 4;
      const std::size_t layer = i / 2 % 2;
      EXPECT_EQ(choices[i],
                hash_choices(geometry, prompt[token], static_cast<std::uint32_t>(layer))[i % 2]);
      const block_id block = batch.slices[0].blocks[token / 16];
      ++rows[block * memory.row_cells() + layer * geometry.experts + choices[i]];
      seen[layer][choices[i]] = true;
    }
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), memory.rows().begin()));
    for (std::size_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(result.distinct_experts.at(layer),
                std::count(seen[layer].begin(), seen[layer].end(), true));
    }
  }
}

TEST(hash_runner, refuses_bad_batches_in_words) {
  const auto runner = make_hash_runner();
  kv_memory memory(runner->layout(), runner->geometry(), 40);
  const auto error_of = [&](const sequence_slice& slice) {
    return runner->run({.slices = {slice}}, memory.view()).error;
  };
  EXPECT_THAT(runner->run({}, memory.view()).error, HasSubstr("no slices"));
  EXPECT_THAT(error_of(slice_of({}, 0, {0})), HasSubstr("no tokens"));
  EXPECT_THAT(error_of(slice_of({251}, 0, {0})), HasSubstr("vocabulary"));
  EXPECT_THAT(error_of(slice_of({1}, 512, block_range(0, 33))), HasSubstr("context"));
  EXPECT_THAT(error_of(slice_of({1}, 0xffffffffu, block_range(0, 33))), HasSubstr("context"));
  EXPECT_THAT(error_of(slice_of({1}, 16, {0})), HasSubstr("do not cover"));
  EXPECT_THAT(error_of(slice_of({1}, 0, {40})), HasSubstr("outside the pool"));
  EXPECT_THAT(error_of(slice_of({1}, 16, {0, 0})), HasSubstr("while sequence"));
  EXPECT_THAT(error_of(slice_of(std::vector<token_id>(17), 0, {0, 0})), HasSubstr("twice"));
  auto rows = slice_of({1}, 3, {0});
  rows.write_rows = true;
  EXPECT_THAT(error_of(rows), HasSubstr("whole blocks"));
  rows.position = 0;
  EXPECT_THAT(runner->run({.slices = {rows}}, memory.view_without_rows()).error,
              HasSubstr("has none"));
  engine_memory small = memory.view();
  small.kv = small.kv.first(small.kv.size() - 1);
  EXPECT_THAT(runner->run({.slices = {slice_of({1}, 0, {0})}}, small).error, HasSubstr("KV pool"));
  EXPECT_EQ(error_of(slice_of({1}, 0, {0})), "");
}

TEST(hash_runner, refuses_unsound_options) {
  hash_runner_options odd;
  odd.geometry.head_dim = 3;
  EXPECT_THROW(make_hash_runner(odd), std::runtime_error);
  hash_runner_options greedy;
  greedy.geometry.experts_per_token = 17;
  EXPECT_THROW(make_hash_runner(greedy), std::runtime_error);
  hash_runner_options wide;
  wide.block_tokens = 128;
  EXPECT_THROW(make_hash_runner(wide), std::runtime_error);
}

}  // namespace
}  // namespace eldr::gpu
