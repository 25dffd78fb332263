/// The band of the eldr policies against its definition, on random similarities.

#include "actors/router/band.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace eldr::actors {
namespace {

std::vector<band_entry> random_entries(std::mt19937_64& rng) {
  std::vector<band_entry> entries(1 + rng() % 12);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    // Coarse values, so that ties in similarity and load are common.
    entries[i].similarity = static_cast<float>(rng() % 21) / 10.0F - 1.0F;
    entries[i].load = static_cast<std::uint32_t>(rng() % 4);
    entries[i].slot = static_cast<std::int32_t>(i);
  }
  std::shuffle(entries.begin(), entries.end(), rng);
  return entries;
}

float best_similarity(const std::vector<band_entry>& entries) {
  return std::max_element(entries.begin(), entries.end(),
                          [](const auto& a, const auto& b) { return a.similarity < b.similarity; })
      ->similarity;
}

TEST(band, zero_tau_is_the_most_similar_worker_with_the_lowest_slot) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 5000; ++round) {
    auto entries = random_entries(rng);
    const auto choice = choose_in_band(entries, 0, 2);
    const auto best = best_similarity(entries);
    EXPECT_EQ(choice.size, 1u);
    EXPECT_FALSE(choice.widened);
    EXPECT_EQ(entries[choice.chosen].similarity, best);
    for (const auto& e : entries) {
      if (e.similarity == best) {
        EXPECT_GE(e.slot, entries[choice.chosen].slot);
      }
    }
  }
}

TEST(band, a_tau_of_two_takes_a_worker_of_least_load_and_breaks_ties_as_stated) {
  std::mt19937_64 rng(2);
  for (int round = 0; round < 5000; ++round) {
    auto entries = random_entries(rng);
    const auto choice = choose_in_band(entries, 2, 2);
    EXPECT_EQ(choice.size, entries.size());
    // Join the shortest queue with this tie-break, written out.
    const auto expected =
        std::min_element(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
          return std::tuple(a.load, -a.similarity, a.slot) <
                 std::tuple(b.load, -b.similarity, b.slot);
        });
    EXPECT_EQ(choice.chosen, static_cast<std::size_t>(expected - entries.begin()));
  }
}

TEST(band, holds_all_within_tau_and_is_widened_to_the_nearest) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 5000; ++round) {
    auto entries = random_entries(rng);
    const float tau = 0.05F + static_cast<float>(rng() % 10) / 10.0F;
    const auto candidates_min = static_cast<std::uint32_t>(1 + rng() % 4);
    const auto choice = choose_in_band(entries, tau, candidates_min);
    const auto best = best_similarity(entries);
    const auto within = static_cast<std::uint32_t>(std::count_if(
        entries.begin(), entries.end(), [&](const auto& e) { return e.similarity >= best - tau; }));
    EXPECT_EQ(choice.size,
              std::max(within, std::min<std::uint32_t>(
                                   candidates_min, static_cast<std::uint32_t>(entries.size()))));
    EXPECT_EQ(choice.widened, choice.size > within);
    EXPECT_TRUE(entries[choice.chosen].in_band);
    for (const auto& in : entries) {
      for (const auto& out : entries) {
        if (in.in_band && !out.in_band) {
          EXPECT_GE(in.similarity, out.similarity);
        }
      }
      if (in.in_band) {
        EXPECT_GE(in.load, entries[choice.chosen].load);
      }
    }
  }
}

TEST(band, leaves_spares_out_unless_there_is_nobody_else) {
  const auto spare = std::nanf("");
  std::vector<band_entry> some{{spare, 0, -1, false}, {-0.9F, 50, 3, false}};
  EXPECT_EQ(choose_in_band(some, 2, 2).chosen, 1u);
  std::vector<band_entry> none{{spare, 5, -1, false}, {spare, 2, -1, false}};
  EXPECT_EQ(choose_in_band(none, 0.1F, 2).chosen, 1u);
}

}  // namespace
}  // namespace eldr::actors
