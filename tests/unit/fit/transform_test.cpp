#include "fit/transform.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "fit/error.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

/// An artifact with random centroids, as much of one as scoring needs.
artifact random_artifact(representation kind, std::uint32_t slots, std::uint32_t experts,
                         std::uint64_t seed) {
  random_source random(seed);
  artifact routing;
  routing.layers = 7;
  routing.experts = experts;
  routing.kind = kind;
  routing.mask = {0, 2, 3, 6};
  routing.slots = slots;
  const std::size_t masked = routing.mask.size() * experts;
  const auto fill = [&random](std::vector<float>& values, std::size_t count) {
    values.resize(count);
    std::ranges::generate(values, [&random] { return static_cast<float>(random.unit()); });
  };
  fill(routing.centroids, slots * masked);
  fill(routing.vanilla_centroids, slots * masked);
  if (kind == representation::count_idf) {
    fill(routing.weights, masked);
  }
  return routing;
}

std::vector<std::uint16_t> random_signature(std::size_t cells, random_source& random) {
  std::vector<std::uint16_t> signature(cells);
  for (auto& cell : signature) {
    // Many zeros, and some of the largest values that fit.
    const auto kind = random.below(10);
    cell = static_cast<std::uint16_t>(kind < 5 ? 0 : kind < 9 ? random.below(40) : 65'535);
  }
  return signature;
}

std::vector<double> plain_similarities(const artifact& routing, const std::vector<float>& centroids,
                                       const std::vector<std::uint16_t>& signature) {
  std::vector<double> result(routing.slots, 0);
  double square = 0;
  const std::size_t masked = routing.mask.size() * routing.experts;
  for (std::size_t i = 0; i < masked; ++i) {
    const std::size_t layer = routing.mask[i / routing.experts];
    const double count = signature[layer * routing.experts + i % routing.experts];
    double x = count;
    if (routing.kind == representation::count_idf) {
      x = count * routing.weights[i];
    } else if (routing.kind == representation::sqrt_count) {
      x = std::sqrt(count);
    } else if (routing.kind == representation::binary) {
      x = count > 0 ? 1 : 0;
    }
    square += x * x;
    for (std::size_t slot = 0; slot < routing.slots; ++slot) {
      result[slot] += x * centroids[slot * masked + i];
    }
  }
  for (double& value : result) {
    value /= std::sqrt(square);
  }
  return result;
}

class slot_scorers : public ::testing::TestWithParam<representation> {};

TEST_P(slot_scorers, equal_the_plain_formula_on_both_paths) {
  random_source random(9);
  for (const std::uint32_t experts : {1u, 5u, 8u, 32u, 60u, 128u}) {
    for (const std::uint32_t slots : {1u, 3u, 8u, 16u, 21u}) {
      const auto routing = random_artifact(GetParam(), slots, experts, experts * 100 + slots);
      slot_scorer portable(routing, centroid_set::balanced, instruction_path::portable);
      slot_scorer best(routing);
      auto signature = random_signature(std::size_t{7} * experts, random);
      signature[2 * experts] = 3;  // Never zero.
      const auto wire = std::as_bytes(std::span(signature));
      std::vector<float> similarities(slots), best_similarities(slots);
      ASSERT_TRUE(portable.score(wire, similarities));
      ASSERT_TRUE(best.score(wire, best_similarities));
      const auto expected = plain_similarities(routing, routing.centroids, signature);
      for (std::size_t slot = 0; slot < slots; ++slot) {
        EXPECT_NEAR(similarities[slot], expected[slot], 1e-4 * std::abs(expected[slot]) + 1e-6);
      }
      EXPECT_EQ(std::memcmp(similarities.data(), best_similarities.data(), slots * sizeof(float)),
                0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(of_all_representations, slot_scorers,
                         ::testing::Values(representation::count, representation::count_idf,
                                           representation::sqrt_count, representation::binary));

TEST(slot_scorer, takes_the_asked_centroids) {
  const auto routing = random_artifact(representation::count, 4, 16, 1);
  random_source random(2);
  const auto signature = random_signature(7 * 16, random);
  slot_scorer vanilla(routing, centroid_set::vanilla);
  std::vector<float> similarities(4);
  ASSERT_TRUE(vanilla.score(std::as_bytes(std::span(signature)), similarities));
  const auto expected = plain_similarities(routing, routing.vanilla_centroids, signature);
  for (std::size_t slot = 0; slot < 4; ++slot) {
    EXPECT_NEAR(similarities[slot], expected[slot], 1e-4);
  }
}

TEST(slot_scorer, reads_signatures_that_are_not_aligned) {
  const auto routing = random_artifact(representation::count, 4, 16, 1);
  random_source random(2);
  const auto signature = random_signature(7 * 16, random);
  std::vector<std::byte> shifted(signature.size() * 2 + 1);
  std::memcpy(shifted.data() + 1, signature.data(), signature.size() * 2);
  slot_scorer scorer(routing);
  std::vector<float> aligned(4), unaligned(4);
  scorer.score(std::as_bytes(std::span(signature)), aligned);
  scorer.score(std::span(shifted).subspan(1), unaligned);
  EXPECT_EQ(aligned, unaligned);
}

TEST(slot_scorer, tells_a_signature_without_direction) {
  auto routing = random_artifact(representation::count_idf, 3, 16, 1);
  slot_scorer scorer(routing);
  std::vector<float> similarities(3, 7.0f);
  std::vector<std::uint16_t> signature(7 * 16, 0);
  EXPECT_FALSE(scorer.score(std::as_bytes(std::span(signature)), similarities));
  EXPECT_THAT(similarities, ::testing::Each(0.0f));
  // Counts in layers outside the mask only.
  signature[1 * 16 + 3] = 5;
  EXPECT_FALSE(scorer.score(std::as_bytes(std::span(signature)), similarities));
  // Counts where the weight is zero only.
  routing.weights.assign(routing.weights.size(), 0);
  signature[0] = 5;
  EXPECT_FALSE(slot_scorer(routing).score(std::as_bytes(std::span(signature)), similarities));
}

TEST(slot_scorer, refuses_wrong_sizes) {
  const auto routing = random_artifact(representation::count, 3, 16, 1);
  slot_scorer scorer(routing);
  const std::vector<std::byte> signature(scorer.wire_bytes());
  std::vector<float> similarities(3);
  EXPECT_THROW(scorer.score(std::span(signature).first(10), similarities), fit_error);
  EXPECT_THROW(scorer.score(signature, std::span(similarities).first(2)), fit_error);
}

}  // namespace
}  // namespace eldr::fit
