#include "fit/refit.hpp"

#include <numeric>

#include "fit/assignment.hpp"
#include "fit/error.hpp"
#include "fit/kmeans.hpp"
#include "fit/selection.hpp"

namespace eldr::fit {
namespace {

trace_counts counts_of(const artifact& routing, std::span<const std::uint16_t> signatures) {
  trace_counts counts;
  counts.layers = routing.layers;
  counts.experts = routing.experts;
  if (signatures.size() % counts.cells() != 0) {
    throw fit_error("Signatures of " + std::to_string(counts.cells()) +
                    " cells are wanted for a refit, and the window is no whole number of them.");
  }
  counts.requests = static_cast<std::uint32_t>(signatures.size() / counts.cells());
  counts.prefill.assign(signatures.begin(), signatures.end());
  return counts;
}

/// The artifact's weights for all layers; those of layers outside the mask do not matter.
std::vector<float> weights_of_all_layers(const artifact& routing) {
  std::vector<float> all(std::size_t{routing.layers} * routing.experts, 0);
  for (std::size_t i = 0; i < routing.weights.size(); ++i) {
    all[std::size_t{routing.mask[i / routing.experts]} * routing.experts + i % routing.experts] =
        routing.weights[i];
  }
  return all;
}

}  // namespace

std::optional<std::vector<float>> refit_centroids(const artifact& routing,
                                                  std::span<const std::uint16_t> signatures,
                                                  const refit_options& options) {
  const trace_counts counts = counts_of(routing, signatures);
  const auto weights = weights_of_all_layers(routing);
  std::vector<std::uint32_t> usable;
  for (std::uint32_t i = 0; i < counts.requests; ++i) {
    if (has_direction(counts, i, routing.kind, weights, routing.mask)) {
      usable.push_back(i);
    }
  }
  if (usable.size() < routing.slots) {
    return std::nullopt;
  }
  const auto features = signature_features(counts, routing.kind, weights, usable, options.threads);
  const clustering clusters = spherical_kmeans(cosines(features, routing.mask, options.threads),
                                               {.clusters = routing.slots,
                                                .iterations_max = options.kmeans_iterations_max,
                                                .seeds = options.kmeans_seeds,
                                                .seed = options.seed,
                                                .threads = options.threads});
  const auto fresh = centroid_vectors(features, routing.mask, clusters);
  const std::size_t width = fresh.size() / routing.slots;
  std::vector<float> ordered;
  ordered.reserve(fresh.size());
  for (const std::uint32_t match : match_centroids(routing.centroids, fresh, routing.slots)) {
    const auto first = fresh.begin() + static_cast<std::ptrdiff_t>(match * width);
    ordered.insert(ordered.end(), first, first + static_cast<std::ptrdiff_t>(width));
  }
  return ordered;
}

std::vector<std::uint32_t> match_centroids(std::span<const float> before,
                                           std::span<const float> after, std::uint32_t slots) {
  if (slots == 0 || before.size() != after.size() || before.size() % slots != 0) {
    throw fit_error("Centroids to be matched must be of the same number and size.");
  }
  const std::size_t width = before.size() / slots;
  std::vector<double> distances;
  for (std::size_t old_slot = 0; old_slot < slots; ++old_slot) {
    const auto old_centroid = before.subspan(old_slot * width, width);
    for (std::size_t new_slot = 0; new_slot < slots; ++new_slot) {
      const auto new_centroid = after.subspan(new_slot * width, width);
      distances.push_back(1 - std::inner_product(old_centroid.begin(), old_centroid.end(),
                                                 new_centroid.begin(), 0.0));
    }
  }
  return assign_balanced(distances, slots, slots);
}

}  // namespace eldr::fit
