#include "fit/kmeans.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "fit/error.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

using testing::synthetic_counts;

struct fixture {
  explicit fixture(const testing::synthetic_shape& shape) : counts(synthetic_counts(shape)) {
    std::vector<std::uint32_t> requests(counts.requests);
    std::iota(requests.begin(), requests.end(), 0u);
    layers.resize(counts.layers);
    std::iota(layers.begin(), layers.end(), 0u);
    features = signature_features(counts, representation::count, {}, requests);
    cosine = cosines(features, layers);
  }

  trace_counts counts;
  std::vector<std::uint32_t> layers;
  layer_features features;
  cosine_matrix cosine;
};

TEST(cosines, equal_the_plain_formula) {
  const fixture f({.requests = 300});  // More than one tile.
  const std::vector<std::uint32_t> layers{0, 2};
  const auto cosine = cosines(f.features, layers, 2);
  for (const auto& [i, j] : {std::pair{0, 0}, {0, 299}, {299, 0}, {17, 260}, {260, 257}}) {
    double dot = 0, first = 0, second = 0;
    for (const std::uint32_t layer : layers) {
      for (std::uint32_t e = 0; e < f.counts.experts; ++e) {
        const double a = f.features.row(layer, static_cast<std::size_t>(i))[e];
        const double b = f.features.row(layer, static_cast<std::size_t>(j))[e];
        dot += a * b;
        first += a * a;
        second += b * b;
      }
    }
    EXPECT_NEAR(cosine(i, j), dot / std::sqrt(first * second), 1e-5);
  }
}

TEST(spherical_kmeans, finds_the_domains) {
  const fixture f({.requests = 60, .domains = 4});
  const auto found = spherical_kmeans(f.cosine, {.clusters = 4});
  std::map<std::uint32_t, std::set<std::uint32_t>> domains;
  for (std::uint32_t i = 0; i < 60; ++i) {
    domains[found.cluster_of[i]].insert(i % 4);
  }
  EXPECT_EQ(domains.size(), 4u);
  for (const auto& [cluster, members] : domains) {
    EXPECT_EQ(members.size(), 1u) << "cluster " << cluster;
  }
}

TEST(spherical_kmeans, balances_sizes_for_any_k) {
  const fixture f({.requests = 50, .domains = 3});
  for (const std::uint32_t clusters : {1u, 2u, 7u, 16u, 49u, 50u}) {
    const auto found = spherical_kmeans(f.cosine, {.clusters = clusters, .seeds = 2});
    std::vector<std::uint32_t> sizes(clusters, 0);
    for (const std::uint32_t cluster : found.cluster_of) {
      ++sizes.at(cluster);
    }
    for (const std::uint32_t size : sizes) {
      EXPECT_GE(size, 50 / clusters);
      EXPECT_LE(size, (50 + clusters - 1) / clusters);
    }
    EXPECT_LE(found.iterations, 50u);
    EXPECT_GT(found.objective, 0);
    EXPECT_LE(found.objective, 1 + 1e-6);
  }
}

TEST(spherical_kmeans, balanced_never_beats_plain_from_the_same_points) {
  const fixture f({.requests = 60, .domains = 5, .seed = 3});
  const auto balanced = spherical_kmeans(f.cosine, {.clusters = 4, .seeds = 10});
  const auto plain = spherical_kmeans(f.cosine, {.clusters = 4, .balanced = false, .seeds = 10});
  EXPECT_LE(balanced.objective, plain.objective + 1e-6);
}

TEST(spherical_kmeans, more_seeds_never_give_less) {
  const fixture f({.requests = 60, .domains = 9, .seed = 4});
  const auto one = spherical_kmeans(f.cosine, {.clusters = 6, .seeds = 1, .seed = 8});
  const auto many = spherical_kmeans(f.cosine, {.clusters = 6, .seeds = 8, .seed = 8});
  EXPECT_GE(many.objective, one.objective);
}

TEST(spherical_kmeans, does_not_depend_on_threads) {
  const fixture f({.requests = 40});
  EXPECT_EQ(spherical_kmeans(f.cosine, {.clusters = 5, .threads = 1}).cluster_of,
            spherical_kmeans(f.cosine, {.clusters = 5, .threads = 3}).cluster_of);
}

TEST(spherical_kmeans, keeps_the_centroid_of_an_empty_cluster) {
  // All points are alike: every item prefers the first centroid, the others stay where they were.
  const cosine_matrix same = cosine_matrix::Ones(6, 6);
  const auto plain = spherical_kmeans(same, {.clusters = 3, .balanced = false});
  EXPECT_THAT(plain.cluster_of, ::testing::Each(0u));
  for (const auto& items : plain.centroid_items) {
    EXPECT_FALSE(items.empty());
  }
  const auto balanced = spherical_kmeans(same, {.clusters = 3});
  EXPECT_NEAR(balanced.objective, 1, 1e-6);
}

TEST(spherical_kmeans, refuses_more_clusters_than_items_and_none) {
  const cosine_matrix same = cosine_matrix::Ones(3, 3);
  EXPECT_THROW(spherical_kmeans(same, {.clusters = 4}), fit_error);
  EXPECT_THROW(spherical_kmeans(same, {.clusters = 0}), fit_error);
}

TEST(centroid_vectors, are_unit_means_of_unit_members) {
  const fixture f({.requests = 30});
  const std::vector<std::uint32_t> layers{1, 2};
  const auto found = spherical_kmeans(cosines(f.features, layers), {.clusters = 3});
  const auto centroids = centroid_vectors(f.features, layers, found);
  const std::size_t width = layers.size() * f.counts.experts;
  ASSERT_EQ(centroids.size(), 3 * width);
  double objective = 0;
  for (std::size_t cluster = 0; cluster < 3; ++cluster) {
    double norm = 0;
    for (std::size_t i = 0; i < width; ++i) {
      norm += centroids[cluster * width + i] * centroids[cluster * width + i];
    }
    EXPECT_NEAR(norm, 1, 1e-5);
    for (const std::uint32_t item : found.centroid_items[cluster]) {
      double dot = 0, square = 0;
      for (std::size_t i = 0; i < width; ++i) {
        const double x = f.features.row(layers[i / f.counts.experts], item)[i % f.counts.experts];
        dot += x * centroids[cluster * width + i];
        square += x * x;
      }
      objective += dot / std::sqrt(square);
    }
  }
  EXPECT_NEAR(objective / 30, found.objective, 1e-5);
}

}  // namespace
}  // namespace eldr::fit
