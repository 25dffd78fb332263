#include "fit/rho.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "fit/layer_mask.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

using testing::recorded_trace;
using testing::synthetic_counts;

/// Average ranks by counting, then Pearson's correlation: slow and plain.
double plain_spearman(const std::vector<float>& x, const std::vector<float>& y) {
  const auto ranks = [](const std::vector<float>& values) {
    std::vector<double> result;
    for (const float value : values) {
      double rank = 0.5;
      for (const float other : values) {
        rank += other < value ? 1 : other == value ? 0.5 : 0;
      }
      result.push_back(rank);
    }
    return result;
  };
  const auto rx = ranks(x);
  const auto ry = ranks(y);
  const double mean = (static_cast<double>(x.size()) + 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (rx[i] - mean) * (ry[i] - mean);
    xx += (rx[i] - mean) * (rx[i] - mean);
    yy += (ry[i] - mean) * (ry[i] - mean);
  }
  return xy / std::sqrt(xx * yy);
}

TEST(rank_correlator, equals_the_plain_formula_with_and_without_ties) {
  random_source random(3);
  for (int round = 0; round < 50; ++round) {
    const std::size_t n = 3 + random.below(200);
    const std::uint64_t values = 2 + random.below(300);
    std::vector<float> x(n), y(n);
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(random.below(values)) / 7 - 10;
      y[i] = x[i] + static_cast<float>(random.below(values)) / 5;
    }
    x[0] = -100;  // Never constant.
    y[0] = 100;
    rank_correlator::scratch memory;
    const auto rho = rank_correlator(y).correlate(x, memory);
    ASSERT_TRUE(rho.has_value());
    EXPECT_NEAR(*rho, plain_spearman(x, y), 1e-12);
  }
}

TEST(rank_correlator, knows_perfect_order_and_constants) {
  const std::vector<float> up{1, 2, 3, 4}, down{4, 3, 2, 1}, flat{5, 5, 5, 5},
      zeros{0, -0.0f, 0, 0};
  rank_correlator::scratch memory;
  EXPECT_EQ(rank_correlator(up).correlate(up, memory), 1);
  EXPECT_EQ(rank_correlator(up).correlate(down, memory), -1);
  EXPECT_EQ(rank_correlator(up).correlate(flat, memory), std::nullopt);
  EXPECT_EQ(rank_correlator(flat).correlate(up, memory), std::nullopt);
  EXPECT_EQ(rank_correlator(up).correlate(zeros, memory), std::nullopt);
}

TEST(pairs, are_all_or_a_distinct_sample_of_the_asked_size) {
  EXPECT_TRUE(choose_pairs(0, 10, 1).empty());
  EXPECT_TRUE(choose_pairs(1, 10, 1).empty());
  EXPECT_EQ(choose_pairs(5, 10, 1).size(), 10u);
  const auto sample = choose_pairs(100, 700, 1);
  std::set<std::pair<std::uint32_t, std::uint32_t>> distinct;
  for (const request_pair& pair : sample) {
    EXPECT_LT(pair.first, pair.second);
    EXPECT_LT(pair.second, 100u);
    distinct.emplace(pair.first, pair.second);
  }
  EXPECT_EQ(distinct.size(), 700u);
  const auto other = choose_pairs(100, 700, 2);
  EXPECT_FALSE(std::ranges::equal(sample, other, [](const request_pair& a, const request_pair& b) {
    return a.first == b.first && a.second == b.second;
  }));
}

TEST(pairs, of_a_sample_are_uniform) {
  std::vector<int> drawn(45, 0);
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    for (const request_pair& pair : choose_pairs(10, 9, seed)) {
      ++drawn[pair.first * 10 + pair.second - (pair.first + 1) * (pair.first + 2) / 2];
    }
  }
  // 400 expected, standard deviation 18: six of them either way.
  for (const int count : drawn) {
    EXPECT_NEAR(count, 400, 108);
  }
}

TEST(pair_similarities, add_up_to_cosine_distances) {
  const auto counts = synthetic_counts({.requests = 12});
  std::vector<std::uint32_t> all(counts.requests);
  std::iota(all.begin(), all.end(), 0u);
  const auto idf = inverse_document_frequency(counts, all);
  const auto features = signature_features(counts, representation::count_idf, idf, all);
  const auto pairs = choose_pairs(counts.requests, 1000, 1);
  const pair_similarities similarities(features, pairs);
  const std::vector<std::uint32_t> layers{0, 2};
  const auto distances = similarities.distances(layers);
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    double dot = 0, first = 0, second = 0;
    for (const std::uint32_t layer : layers) {
      for (std::size_t e = 0; e < counts.experts; ++e) {
        const double a = features.row(layer, pairs[p].first)[e];
        const double b = features.row(layer, pairs[p].second)[e];
        dot += a * b;
        first += a * a;
        second += b * b;
      }
    }
    EXPECT_NEAR(distances[p], 1 - dot / std::sqrt(first * second), 1e-5);
  }
}

TEST(pair_similarities, put_a_zero_vector_at_distance_one) {
  auto counts = synthetic_counts({.requests = 4});
  std::fill_n(counts.prefill.begin(), counts.cells(), std::uint16_t{0});
  const std::vector<std::uint32_t> all{0, 1, 2, 3};
  const auto features = signature_features(counts, representation::count, {}, all);
  const auto pairs = choose_pairs(4, 10, 1);
  const auto distances = pair_similarities(features, pairs).distances();
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    if (pairs[p].first == 0) {
      EXPECT_EQ(distances[p], 1);
    } else {
      EXPECT_LT(distances[p], 1);
    }
  }
}

TEST(layer_mask, equals_a_plain_greedy_search) {
  const auto counts = synthetic_counts({.requests = 30, .layers = 5});
  std::vector<std::uint32_t> all(counts.requests);
  std::iota(all.begin(), all.end(), 0u);
  const auto pairs = choose_pairs(counts.requests, 1000, 1);
  const pair_similarities signatures(signature_features(counts, representation::count, {}, all),
                                     pairs);
  const auto decode = pair_similarities(decode_features(counts, all), pairs).distances();
  std::vector<std::uint32_t> chosen;
  for (const mask_step& step : search_layer_mask(signatures, rank_correlator(decode), 2)) {
    double best = -2;
    std::uint32_t best_layer = 0;
    for (std::uint32_t layer = 0; layer < counts.layers; ++layer) {
      if (std::ranges::find(chosen, layer) != chosen.end()) {
        continue;
      }
      auto trial = chosen;
      trial.push_back(layer);
      const double rho = plain_spearman(signatures.distances(trial), decode);
      if (rho > best + 1e-12) {
        best = rho;
        best_layer = layer;
      }
    }
    EXPECT_EQ(step.layer, best_layer);
    EXPECT_NEAR(step.rho, best, 1e-9);
    chosen.push_back(best_layer);
  }
  EXPECT_EQ(chosen.size(), counts.layers);
}

TEST(layer_mask, ends_at_the_first_maximum) {
  EXPECT_THAT(best_prefix({{4, 0.5}, {1, 0.7}, {3, 0.6}, {0, 0.7}}), ::testing::ElementsAre(1, 4));
  EXPECT_THAT(best_prefix({{2, 0.1}}), ::testing::ElementsAre(2));
}

TEST(layer_mask, adds_an_empty_layer_last_and_keeps_it_out) {
  auto counts = synthetic_counts({.requests = 30});
  for (std::size_t request = 0; request < counts.requests; ++request) {
    std::fill_n(counts.prefill.begin() + static_cast<std::ptrdiff_t>(request * counts.cells()),
                counts.experts, std::uint16_t{0});  // Layer 0.
  }
  std::vector<std::uint32_t> all(counts.requests);
  std::iota(all.begin(), all.end(), 0u);
  const auto pairs = choose_pairs(counts.requests, 1000, 1);
  const pair_similarities signatures(signature_features(counts, representation::count, {}, all),
                                     pairs);
  const rank_correlator decode(pair_similarities(decode_features(counts, all), pairs).distances());
  EXPECT_THAT(best_prefix(search_layer_mask(signatures, decode)),
              ::testing::Not(::testing::Contains(0u)));
}

TEST(recorded_traces, gpt_oss_20b_has_the_known_rhos) {
  const auto folder = recorded_trace("gpt-oss-20b");
  if (!folder) {
    GTEST_SKIP() << "no recorded trace of gpt-oss-20b here";
  }
  const auto counts = count_trace(trace::open(*folder), 32);
  std::vector<std::uint32_t> all(counts.requests);
  std::iota(all.begin(), all.end(), 0u);
  const auto pairs = choose_pairs(counts.requests, pairs_limit, 1);
  ASSERT_EQ(pairs.size(), 44'850u);
  const rank_correlator decode(pair_similarities(decode_features(counts, all), pairs).distances());
  const auto idf = inverse_document_frequency(counts, all);
  const auto rho = [&](representation kind) {
    rank_correlator::scratch memory;
    const pair_similarities signatures(signature_features(counts, kind, idf, all), pairs);
    return decode.correlate(signatures.distances(), memory).value_or(-2);
  };
  EXPECT_NEAR(rho(representation::count), 0.8568, 1e-3);
  EXPECT_NEAR(rho(representation::sqrt_count), 0.8588, 1e-3);
  EXPECT_NEAR(rho(representation::count_idf), 0.7844, 1e-3);
  EXPECT_NEAR(rho(representation::binary), 0.7357, 1e-3);
}

}  // namespace
}  // namespace eldr::fit
