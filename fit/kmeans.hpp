#pragma once
/// Spherical K-means, balanced and plain, on the cosines between all items. With the matrix of
/// cosines at hand an iteration costs what the moved items cost, whatever the dimension.

#include <Eigen/Core>
#include <cstdint>
#include <span>
#include <vector>

#include "fit/representation.hpp"

namespace eldr::fit {

/// Symmetric [items][items]. Row-major like every other array here.
using cosine_matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Cosines between the signatures over the given layers. None may have zero norm.
cosine_matrix cosines(const layer_features& features, std::span<const std::uint32_t> layers,
                      unsigned threads = 0);

struct clustering {
  std::vector<std::uint32_t> cluster_of;  ///< [items]
  /// The items whose normalised sum is the cluster's centroid. In plain K-means a cluster that
  /// lost all its items keeps the centroid that it had.
  std::vector<std::vector<std::uint32_t>> centroid_items;
  double objective = 0;          ///< Mean cosine of an item with its centroid.
  std::uint32_t iterations = 0;  ///< Assignments made.
};

struct kmeans_options {
  std::uint32_t clusters = 0;
  bool balanced = true;  ///< Sizes floor(N / K) or one more, by optimal assignment.
  std::uint32_t iterations_max = 50;
  std::uint32_t seeds = 5;  ///< Runs from different starts; the best objective wins.
  std::uint64_t seed = 1;
  unsigned threads = 0;
};

/// Each run starts by k-means++ and ends at a fixed point or after iterations_max. Throws fit_error
/// when there are no clusters or fewer items than clusters.
clustering spherical_kmeans(const cosine_matrix& cosine, const kmeans_options& options);

/// Unit centroids [clusters][layers given][experts] of a clustering of the features' requests.
std::vector<float> centroid_vectors(const layer_features& features,
                                    std::span<const std::uint32_t> layers,
                                    const clustering& clusters);

}  // namespace eldr::fit
