#include "fit/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "fit/error.hpp"
#include "fit/patterns.hpp"
#include "fit/random.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

TEST(place_experts, gives_every_rank_the_same_number) {
  random_source random(2);
  for (const std::uint32_t ranks : {1u, 2u, 4u, 8u, 16u}) {
    std::vector<float> pattern(3 * 16);
    std::ranges::generate(pattern, [&random] { return static_cast<float>(random.unit()); });
    const auto rank_of = place_experts(pattern, 3, 16, ranks, 8);
    for (std::size_t layer = 0; layer < 3; ++layer) {
      for (std::uint16_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(std::count(rank_of.begin() + static_cast<std::ptrdiff_t>(layer * 16),
                             rank_of.begin() + static_cast<std::ptrdiff_t>(layer * 16 + 16), rank),
                  16 / ranks);
      }
    }
  }
}

TEST(place_experts, puts_the_most_active_on_the_lightest_rank_with_room) {
  // Activations 0.9, 0.8, 0.3, 0.2 with batch 1: 0.9 | 0.8, then 0.3 to the lighter second rank,
  // which is then full.
  const std::vector<float> pattern{0.2f, 0.9f, 0.3f, 0.8f};
  EXPECT_THAT(place_experts(pattern, 1, 4, 2, 1), ::testing::ElementsAre(0, 0, 1, 1));
}

TEST(place_experts, spreads_activation_better_than_in_order) {
  random_source random(4);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> pattern(64);
    for (std::size_t e = 0; e < pattern.size(); ++e) {
      pattern[e] = static_cast<float>(random.unit() * (e < 16 ? 0.5 : 0.05));
    }
    const auto rank_of = place_experts(pattern, 1, 64, 4, 8);
    std::vector<double> placed(4, 0), in_order(4, 0);
    for (std::size_t e = 0; e < 64; ++e) {
      const double active = 1 - std::pow(1.0 - pattern[e], 8);
      placed[rank_of[e]] += active;
      in_order[e / 16] += active;
    }
    EXPECT_LT(*std::ranges::max_element(placed), *std::ranges::max_element(in_order));
    const auto [least, most] = std::ranges::minmax(placed);
    EXPECT_LT(most / least, 1.1);
  }
}

TEST(place_experts, refuses_ranks_that_do_not_divide_the_experts) {
  const std::vector<float> pattern(6, 0.1f);
  EXPECT_THROW(place_experts(pattern, 1, 6, 4, 8), fit_error);
  EXPECT_THROW(place_experts(pattern, 1, 6, 0, 8), fit_error);
}

TEST(decode_patterns, are_shares_of_tokens_with_equal_weight_per_request) {
  trace_counts counts;
  counts.requests = 3;
  counts.layers = 1;
  counts.experts = 3;
  counts.experts_per_token = 1;
  counts.decode = {1, 1, 0, 0, 0, 4, 0, 0, 0};
  counts.decode_tokens = {2, 4, 0};
  const std::vector<std::uint32_t> all{0, 1, 2};
  EXPECT_THAT(mean_decode_pattern(counts, all), ::testing::ElementsAre(0.25f, 0.25f, 0.5f));
  const std::vector<std::uint32_t> silent{2};
  EXPECT_TRUE(mean_decode_pattern(counts, silent).empty());
}

TEST(expected_unions, of_certain_choices_are_exact) {
  const std::vector<float> first{1, 1, 0, 0}, second{0, 0, 1, 1}, even{0.5f, 0.5f, 0.5f, 0.5f};
  EXPECT_DOUBLE_EQ(expected_union(first, first, 1, 8), 2);
  EXPECT_DOUBLE_EQ(expected_union(first, second, 1, 8), 4);
  EXPECT_DOUBLE_EQ(expected_union(first, second, 1, 1), 2);
  EXPECT_DOUBLE_EQ(expected_union(even, even, 2, 2), 1.5);
}

}  // namespace
}  // namespace eldr::fit
