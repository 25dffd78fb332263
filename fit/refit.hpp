#pragma once
/// New centroids from the signatures of late, under the transform that the artifact has.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fit/artifact.hpp"

namespace eldr::fit {

struct refit_options {
  std::uint32_t kmeans_seeds = 1;
  std::uint32_t kmeans_iterations_max = 50;
  std::uint64_t seed = 1;
  unsigned threads = 1;
};

/// Balanced clusters of the given signatures, uint16 [signatures][layers][experts], as unit
/// centroids [slots][mask][experts]. Every slot gets the new centroid that belongs to its old one
/// under the optimal matching by cosine, so that workers keep their identity. Nothing when fewer
/// signatures have a direction than there are slots. Memory grows with the square of the number of
/// signatures. Throws fit_error when the size is no whole number of signatures.
std::optional<std::vector<float>> refit_centroids(const artifact& routing,
                                                  std::span<const std::uint16_t> signatures,
                                                  const refit_options& options);

/// For every slot of `before` the index of the centroid of `after` that it is matched with: the
/// matching with the largest total cosine. Both are [slots][width], of unit length.
std::vector<std::uint32_t> match_centroids(std::span<const float> before,
                                           std::span<const float> after, std::uint32_t slots);

}  // namespace eldr::fit
