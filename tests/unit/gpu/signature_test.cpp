#include "gpu/signature.hpp"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

namespace {

using eldr::gpu::block_id;
using eldr::gpu::count_choices;
using eldr::gpu::sum_rows;

TEST(signature, sum_equals_a_cell_by_cell_sum) {
  std::mt19937_64 random(7);
  for (const std::size_t cells : {1, 7, 63, 64, 65, 384, 1000}) {
    constexpr std::size_t row_count = 9;
    std::vector<std::int8_t> rows(cells * row_count);
    for (auto& cell : rows) {
      cell = static_cast<std::int8_t>(random() % 128);
    }
    std::vector<block_id> blocks(random() % 500);
    for (auto& block : blocks) {
      block = static_cast<block_id>(random() % row_count);
    }
    const auto sum = sum_rows(rows, cells, blocks);
    ASSERT_EQ(sum.size(), cells);
    for (std::size_t i = 0; i < cells; ++i) {
      std::uint32_t expected = 0;
      for (const block_id block : blocks) {
        expected += static_cast<std::uint32_t>(rows[block * cells + i]);
      }
      ASSERT_EQ(sum[i], expected) << "cell " << i << " of " << cells;
    }
  }
}

TEST(signature, the_longest_context_is_exact) {
  const std::vector<std::int8_t> rows(64, 127);
  // 516 blocks of 127 tokens: 65,532.
  EXPECT_EQ(sum_rows(rows, 64, std::vector<block_id>(516, 0)),
            std::vector<std::uint16_t>(64, 65'532));
}

TEST(signature, rows_equal_the_recount_of_choices) {
  constexpr std::uint32_t layers = 3, experts = 70, k = 4, block_tokens = 16, tokens = 100;
  std::mt19937_64 random(3);
  std::vector<std::uint16_t> choices;
  std::vector<std::int8_t> rows(7 * layers * experts, 0);
  for (std::uint32_t t = 0; t < tokens; ++t) {
    for (std::uint32_t l = 0; l < layers; ++l) {
      const auto first = static_cast<std::uint16_t>(random() % experts);
      for (std::uint32_t i = 0; i < k; ++i) {
        choices.push_back(static_cast<std::uint16_t>((first + i) % experts));
        ++rows[(t / block_tokens * layers + l) * experts + choices.back()];
      }
    }
  }
  const std::vector<block_id> blocks{0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(sum_rows(rows, layers * experts, blocks), count_choices(choices, layers, experts, k));
}

TEST(signature, faulty_input_is_refused) {
  const std::vector<std::int8_t> rows(8);
  EXPECT_THROW(sum_rows(rows, 4, std::vector<block_id>{2}), std::runtime_error);
  EXPECT_THROW(sum_rows(rows, 0, std::vector<block_id>{0}), std::runtime_error);
  EXPECT_EQ(sum_rows(rows, 4, {}), std::vector<std::uint16_t>(4));
  EXPECT_THROW(count_choices(std::vector<std::uint16_t>{1, 2, 3}, 1, 8, 2), std::runtime_error);
  EXPECT_THROW(count_choices(std::vector<std::uint16_t>{1, 8}, 1, 8, 2), std::runtime_error);
  EXPECT_THROW(count_choices(std::vector<std::uint16_t>{}, 0, 8, 2), std::runtime_error);
}

}  // namespace
