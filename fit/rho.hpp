#pragma once
/// rho: how well distances between signatures predict distances between decode patterns. Spearman's
/// rank correlation, with average ranks for ties, over pairs of requests.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fit/representation.hpp"

namespace eldr::fit {

struct request_pair {
  std::uint32_t first = 0;
  std::uint32_t second = 0;  ///< Above `first`.
};

inline constexpr std::size_t pairs_limit = 1'000'000;

/// All pairs of `requests` requests, or a seeded uniform sample of `pairs_max` (at most
/// pairs_limit) of them when there are more. In ascending order.
std::vector<request_pair> choose_pairs(std::uint32_t requests, std::size_t pairs_max,
                                       std::uint64_t seed);

/// Ranks against which many other rankings of the same items are correlated.
class rank_correlator {
 public:
  /// At most pairs_limit values; neither these nor later ones may be NaN.
  explicit rank_correlator(std::span<const float> values);

  /// Working memory, so that correlating allocates nothing after the first call.
  struct scratch {
    std::vector<std::uint64_t> keys, spare;
  };

  /// Spearman's rho with the given values, as many as there were at first. Nothing when one side
  /// is constant.
  std::optional<double> correlate(std::span<const float> values, scratch& memory) const;

 private:
  // Twice the average rank, less its mean: whole numbers, so that sums are exact.
  std::vector<std::int32_t> ranks_;
  double sum_of_squares_ = 0;
};

/// Dot products of the signatures of pairs, layer by layer, so that any set of layers can be tried
/// by adding.
class pair_similarities {
 public:
  pair_similarities(const layer_features& features, std::span<const request_pair> pairs,
                    unsigned threads = 0);

  std::uint32_t layers() const noexcept { return layers_; }
  std::uint32_t requests() const noexcept { return requests_; }
  std::span<const request_pair> pairs() const noexcept { return pairs_; }
  /// [pairs]
  std::span<const float> dots(std::size_t layer) const noexcept {
    return std::span(dots_).subspan(layer * pairs_.size(), pairs_.size());
  }
  /// [requests]
  std::span<const float> norms(std::size_t layer) const noexcept {
    return std::span(squared_norms_).subspan(layer * requests_, requests_);
  }

  /// Cosine distances over the given layers; 1 where a vector is zero.
  std::vector<float> distances(std::span<const std::uint32_t> layers) const;
  /// Over all layers.
  std::vector<float> distances() const;

 private:
  std::uint32_t layers_;
  std::uint32_t requests_;
  std::vector<request_pair> pairs_;
  std::vector<float> dots_;           // [layers][pairs]
  std::vector<float> squared_norms_;  // [layers][requests]
};

/// Cosine distances from sums of dot products and of squared norms; `inverse_norms` is working
/// memory of one float per request.
void cosine_distances(std::span<const request_pair> pairs, std::span<const float> dots,
                      std::span<const float> squared_norms, std::span<float> inverse_norms,
                      std::span<float> distances) noexcept;

}  // namespace eldr::fit
