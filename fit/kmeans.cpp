#include "fit/kmeans.hpp"

#include <algorithm>
#include <cmath>

#include "fit/assignment.hpp"
#include "fit/error.hpp"
#include "fit/parallel.hpp"
#include "fit/random.hpp"

namespace eldr::fit {
namespace {

using feature_map = Eigen::Map<const cosine_matrix>;

/// Seeds in the manner of k-means++ (Arthur, Vassilvitskii 2007): each next one with probability
/// proportional to its squared distance, 2(1 - cosine) on the sphere, from the nearest so far.
std::vector<std::uint32_t> plus_plus_seeds(const cosine_matrix& cosine, std::uint32_t clusters,
                                           random_source& random) {
  const auto items = static_cast<std::uint32_t>(cosine.rows());
  std::vector<std::uint32_t> seeds{static_cast<std::uint32_t>(random.below(items))};
  std::vector<double> distance(items, 2);
  while (seeds.size() < clusters) {
    double total = 0;
    for (std::uint32_t i = 0; i < items; ++i) {
      distance[i] = std::min(distance[i], std::max(0.0, 1.0 - cosine(seeds.back(), i)));
      if (std::ranges::find(seeds, i) != seeds.end()) {
        distance[i] = 0;
      }
      total += distance[i];
    }
    double target = random.unit() * total;
    std::uint32_t chosen = 0;
    while (chosen + 1 < items && (target >= distance[chosen] || distance[chosen] == 0)) {
      target -= distance[chosen++];
    }
    while (std::ranges::find(seeds, chosen) != seeds.end()) {
      chosen = (chosen + 1) % items;  // All that is left lies on seeds: any item not taken will do.
    }
    seeds.push_back(chosen);
  }
  return seeds;
}

/// One run. Centroids are never formed: s_k = sum of the members' unit vectors, and the products
/// of every item with every s_k are kept up to date as items move.
class kmeans_run {
 public:
  kmeans_run(const cosine_matrix& cosine, const kmeans_options& options, std::uint64_t seed)
      : cosine_(cosine),
        options_(options),
        items_(static_cast<std::size_t>(cosine.rows())),
        products_(Eigen::MatrixXd::Zero(cosine.rows(), options.clusters)),
        costs_(items_ * options.clusters) {
    random_source random(seed);
    for (const std::uint32_t item : plus_plus_seeds(cosine, options.clusters, random)) {
      result_.centroid_items.push_back({item});
    }
  }

  clustering run() {
    for (std::size_t k = 0; k < options_.clusters; ++k) {
      add(result_.centroid_items[k][0], k, 1);
    }
    while (result_.iterations < options_.iterations_max) {
      compute_costs();
      auto next =
          options_.balanced ? assign_balanced(costs_, items_, options_.clusters) : assign_nearest();
      ++result_.iterations;
      if (next == result_.cluster_of) {
        break;
      }
      result_.cluster_of = std::move(next);
      update_centroids();
    }
    compute_costs();
    double distance = 0;
    for (std::size_t i = 0; i < items_; ++i) {
      distance += costs_[i * options_.clusters + result_.cluster_of[i]];
    }
    result_.objective = 1 - distance / static_cast<double>(items_);
    return std::move(result_);
  }

 private:
  void add(std::uint32_t item, std::size_t cluster, double sign) {
    products_.col(static_cast<Eigen::Index>(cluster)) +=
        sign * cosine_.row(item).transpose().cast<double>();
  }

  void compute_costs() {
    for (std::size_t k = 0; k < options_.clusters; ++k) {
      const auto column = products_.col(static_cast<Eigen::Index>(k));
      double squared_norm = 0;
      for (const std::uint32_t item : result_.centroid_items[k]) {
        squared_norm += column(item);
      }
      // Members that cancel out (possible with negative features only) leave no direction.
      const double scale = squared_norm > 0 ? 1 / std::sqrt(squared_norm) : 0;
      for (std::size_t i = 0; i < items_; ++i) {
        costs_[i * options_.clusters + k] = 1 - column(static_cast<Eigen::Index>(i)) * scale;
      }
    }
  }

  std::vector<std::uint32_t> assign_nearest() const {
    std::vector<std::uint32_t> nearest(items_);
    for (std::size_t i = 0; i < items_; ++i) {
      const auto row = std::span(costs_).subspan(i * options_.clusters, options_.clusters);
      nearest[i] = static_cast<std::uint32_t>(std::ranges::min_element(row) - row.begin());
    }
    return nearest;
  }

  void update_centroids() {
    std::vector<std::vector<std::uint32_t>> members(options_.clusters);
    for (std::uint32_t i = 0; i < items_; ++i) {
      members[result_.cluster_of[i]].push_back(i);
    }
    for (std::size_t k = 0; k < options_.clusters; ++k) {
      if (members[k].empty()) {
        continue;
      }
      move_sum(k, result_.centroid_items[k], members[k]);
      result_.centroid_items[k] = std::move(members[k]);
    }
  }

  /// Both lists ascend.
  void move_sum(std::size_t cluster, const std::vector<std::uint32_t>& before,
                const std::vector<std::uint32_t>& after) {
    std::vector<std::uint32_t> difference;
    std::ranges::set_difference(before, after, std::back_inserter(difference));
    for (const std::uint32_t item : difference) {
      add(item, cluster, -1);
    }
    difference.clear();
    std::ranges::set_difference(after, before, std::back_inserter(difference));
    for (const std::uint32_t item : difference) {
      add(item, cluster, 1);
    }
  }

  const cosine_matrix& cosine_;
  const kmeans_options& options_;
  std::size_t items_;
  Eigen::MatrixXd products_;   // [items][clusters], a cluster's column being contiguous
  std::vector<double> costs_;  // [items][clusters]
  clustering result_;
};

}  // namespace

cosine_matrix cosines(const layer_features& features, std::span<const std::uint32_t> layers,
                      unsigned threads) {
  const Eigen::Index items = features.requests;
  constexpr Eigen::Index tile = 256;
  const Eigen::Index tiles = (items + tile - 1) / tile;
  cosine_matrix result = cosine_matrix::Zero(items, items);
  // The tiles of the lower triangle, each of its own memory; sums run over layers in order.
  parallel_for(static_cast<std::size_t>(tiles * tiles), threads, [&](std::size_t index) {
    const auto row = static_cast<Eigen::Index>(index) / tiles * tile;
    const auto column = static_cast<Eigen::Index>(index) % tiles * tile;
    if (column > row) {
      return;
    }
    const Eigen::Index height = std::min(tile, items - row);
    const Eigen::Index width = std::min(tile, items - column);
    for (const std::uint32_t layer : layers) {
      const feature_map rows(features.layer(layer), items, features.experts);
      result.block(row, column, height, width).noalias() +=
          rows.middleRows(row, height) * rows.middleRows(column, width).transpose();
    }
  });
  const Eigen::VectorXf scale = result.diagonal().cwiseSqrt().cwiseInverse();
  for (Eigen::Index i = 0; i < items; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) {
      result(i, j) *= scale(i) * scale(j);
      result(j, i) = result(i, j);
    }
  }
  return result;
}

clustering spherical_kmeans(const cosine_matrix& cosine, const kmeans_options& options) {
  if (options.clusters == 0 || cosine.rows() < std::int64_t{options.clusters}) {
    throw fit_error("Cannot make " + std::to_string(options.clusters) + " clusters of " +
                    std::to_string(cosine.rows()) +
                    " requests; give a K from 1 to the number of requests.");
  }
  std::vector<clustering> runs(std::max(options.seeds, 1u));
  parallel_for(runs.size(), options.threads, [&](std::size_t i) {
    runs[i] = kmeans_run(cosine, options, options.seed + i).run();
  });
  return std::move(*std::ranges::max_element(runs, {}, &clustering::objective));
}

std::vector<float> centroid_vectors(const layer_features& features,
                                    std::span<const std::uint32_t> layers,
                                    const clustering& clusters) {
  const auto norms = squared_norms(features);
  const std::size_t width = layers.size() * features.experts;
  std::vector<float> centroids;
  centroids.reserve(clusters.centroid_items.size() * width);
  for (const auto& items : clusters.centroid_items) {
    Eigen::VectorXd sum = Eigen::VectorXd::Zero(static_cast<Eigen::Index>(width));
    for (const std::uint32_t item : items) {
      double squared_norm = 0;
      for (const std::uint32_t layer : layers) {
        squared_norm += norms[std::size_t{layer} * features.requests + item];
      }
      const double scale = 1 / std::sqrt(squared_norm);
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const auto row = features.row(layers[i], item);
        sum.segment(static_cast<Eigen::Index>(i * features.experts), features.experts) +=
            scale * Eigen::Map<const Eigen::VectorXf>(row.data(), features.experts).cast<double>();
      }
    }
    sum.normalize();
    for (const double value : sum) {
      centroids.push_back(static_cast<float>(value));
    }
  }
  return centroids;
}

}  // namespace eldr::fit
