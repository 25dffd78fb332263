#include "fit/rho.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "fit/error.hpp"
#include "fit/parallel.hpp"
#include "fit/random.hpp"

namespace eldr::fit {
namespace {

/// A key that orders as the float does.
std::uint32_t ordered_key(float value) noexcept {
  // Adding zero makes -0 and 0 one value, as comparison has it.
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0f);
  return (bits & 0x8000'0000u) != 0 ? ~bits : bits | 0x8000'0000u;
}

/// Sorts by the upper 32 bits: a stable radix sort, in three passes that share one histogram scan.
/// The mask search sorts tens of thousands of pairs a thousand times; comparison sorts take ten
/// times as long.
void sort_by_key(std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& spare) {
  constexpr std::size_t digits = 3;
  constexpr std::size_t digit_bits = 11;
  constexpr std::uint64_t digit_mask = (1u << digit_bits) - 1;
  const auto digit = [](std::uint64_t key, std::size_t d) {
    return (key >> (32 + d * digit_bits)) & digit_mask;
  };
  std::array<std::array<std::uint32_t, digit_mask + 1>, digits> starts{};
  for (const std::uint64_t key : keys) {
    for (std::size_t d = 0; d < digits; ++d) {
      ++starts[d][digit(key, d)];
    }
  }
  spare.resize(keys.size());
  for (std::size_t d = 0; d < digits; ++d) {
    std::exclusive_scan(starts[d].begin(), starts[d].end(), starts[d].begin(), 0u);
    for (const std::uint64_t key : keys) {
      spare[starts[d][digit(key, d)]++] = key;
    }
    keys.swap(spare);
  }
}

/// Calls visit(first, last, rank) for every run of equal keys, rank being twice the run's average
/// rank less the mean of all.
template <typename Visit>
void for_each_tie(std::span<const std::uint64_t> sorted, Visit visit) {
  const auto n = static_cast<std::int64_t>(sorted.size());
  for (std::size_t first = 0; first < sorted.size();) {
    std::size_t last = first + 1;
    while (last < sorted.size() && sorted[last] >> 32 == sorted[first] >> 32) {
      ++last;
    }
    // Ranks first + 1 to last have the average (first + 1 + last) / 2; the mean is (n + 1) / 2.
    visit(first, last, static_cast<std::int64_t>(first + last) - n);
    first = last;
  }
}

}  // namespace

std::vector<request_pair> choose_pairs(std::uint32_t requests, std::size_t pairs_max,
                                       std::uint64_t seed) {
  const std::uint64_t total = std::uint64_t{requests} * (std::max(requests, 1u) - 1) / 2;
  std::uint64_t wanted = std::min<std::uint64_t>({pairs_max, pairs_limit, total});
  std::uint64_t remaining = total;
  std::vector<request_pair> pairs;
  pairs.reserve(wanted);
  random_source random(seed);
  // Knuth's selection sampling: every subset of the size is equally likely, and comes in order.
  for (std::uint32_t first = 0; first < requests; ++first) {
    for (std::uint32_t second = first + 1; second < requests && wanted > 0; ++second) {
      if (wanted == remaining || random.below(remaining) < wanted) {
        pairs.push_back({first, second});
        --wanted;
      }
      --remaining;
    }
  }
  return pairs;
}

rank_correlator::rank_correlator(std::span<const float> values) : ranks_(values.size()) {
  if (values.size() > pairs_limit) {
    throw fit_error("A rank correlation takes at most 1,000,000 pairs; lower the number of pairs.");
  }
  std::vector<std::uint64_t> keys(values.size());
  std::vector<std::uint64_t> spare;
  for (std::size_t i = 0; i < values.size(); ++i) {
    keys[i] = std::uint64_t{ordered_key(values[i])} << 32 | i;
  }
  sort_by_key(keys, spare);
  for_each_tie(keys, [&](std::size_t first, std::size_t last, std::int64_t rank) {
    for (std::size_t i = first; i < last; ++i) {
      ranks_[keys[i] & 0xffff'ffffu] = static_cast<std::int32_t>(rank);
    }
    sum_of_squares_ += static_cast<double>(last - first) * static_cast<double>(rank * rank);
  });
}

std::optional<double> rank_correlator::correlate(std::span<const float> values,
                                                 scratch& memory) const {
  memory.keys.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The other side's rank travels with the key, so that no item is looked up after sorting.
    memory.keys[i] =
        std::uint64_t{ordered_key(values[i])} << 32 | static_cast<std::uint32_t>(ranks_[i]);
  }
  sort_by_key(memory.keys, memory.spare);
  std::int64_t products = 0;  // At most pairs_limit^3 = 1e18: exact.
  double squares = 0;
  for_each_tie(memory.keys, [&](std::size_t first, std::size_t last, std::int64_t rank) {
    std::int64_t others = 0;
    for (std::size_t i = first; i < last; ++i) {
      others += static_cast<std::int32_t>(memory.keys[i] & 0xffff'ffffu);
    }
    products += rank * others;
    squares += static_cast<double>(last - first) * static_cast<double>(rank * rank);
  });
  if (squares == 0 || sum_of_squares_ == 0) {
    return std::nullopt;
  }
  return static_cast<double>(products) / std::sqrt(squares * sum_of_squares_);
}

pair_similarities::pair_similarities(const layer_features& features,
                                     std::span<const request_pair> pairs, unsigned threads)
    : layers_(features.layers),
      requests_(features.requests),
      pairs_(pairs.begin(), pairs.end()),
      dots_(features.layers * pairs.size()),
      squared_norms_(squared_norms(features)) {
  using vector_map = Eigen::Map<const Eigen::VectorXf>;
  parallel_for(layers_, threads, [&](std::size_t layer) {
    float* out = dots_.data() + layer * pairs_.size();
    const float* rows = features.layer(layer);
    const std::size_t width = features.experts;
    for (const request_pair& pair : pairs_) {
      const vector_map first(rows + pair.first * width, features.experts);
      const vector_map second(rows + pair.second * width, features.experts);
      *out++ = first.dot(second);
    }
  });
}

std::vector<float> pair_similarities::distances(std::span<const std::uint32_t> layers) const {
  std::vector<float> dot_sums(pairs_.size(), 0);
  std::vector<float> norm_sums(requests_, 0);
  for (const std::uint32_t layer : layers) {
    std::ranges::transform(dot_sums, dots(layer), dot_sums.begin(), std::plus<>());
    std::ranges::transform(norm_sums, norms(layer), norm_sums.begin(), std::plus<>());
  }
  std::vector<float> inverse_norms(requests_);
  std::vector<float> result(pairs_.size());
  cosine_distances(pairs_, dot_sums, norm_sums, inverse_norms, result);
  return result;
}

std::vector<float> pair_similarities::distances() const {
  std::vector<std::uint32_t> all(layers_);
  std::iota(all.begin(), all.end(), 0u);
  return distances(all);
}

void cosine_distances(std::span<const request_pair> pairs, std::span<const float> dots,
                      std::span<const float> squared_norms, std::span<float> inverse_norms,
                      std::span<float> distances) noexcept {
  for (std::size_t i = 0; i < squared_norms.size(); ++i) {
    // Zero stands for "no direction": it makes the similarity 0 and the distance 1.
    inverse_norms[i] = squared_norms[i] > 0 ? 1.0f / std::sqrt(squared_norms[i]) : 0.0f;
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    distances[i] = 1.0f - dots[i] * inverse_norms[pairs[i].first] * inverse_norms[pairs[i].second];
  }
}

}  // namespace eldr::fit
