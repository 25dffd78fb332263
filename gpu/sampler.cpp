#include "gpu/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

#include "gpu/det_math.hpp"
#include "gpu/philox.hpp"

namespace eldr::gpu {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Place in the ranking as one number, the first rank being the smallest: the float's bits in an
/// order that falls with its value, then the id.
std::uint64_t rank_key(float logit, token_id id) {
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0F);  // -0 ranks as 0.
  const std::uint32_t ascending = bits >> 31 != 0 ? ~bits : bits | 0x8000'0000;
  return std::uint64_t{~ascending} << 32 | id;
}

token_id id_of(std::uint64_t key) {
  return static_cast<token_id>(key);
}

/// First token of the ranking. Also checks all logits.
token_id arg_max(std::span<const float> logits) {
  std::size_t best = 0;
  bool valid = true;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    valid = valid && logits[i] < infinity;  // False for NaN as well.
    best = logits[i] > logits[best] ? i : best;
  }
  if (!valid || !(logits[best] > -infinity)) {
    throw std::runtime_error(
        "The model computed logits that are not numbers; its weights may be damaged.");
  }
  return static_cast<token_id>(best);
}

/// The ranking from its begin, sorted only as far as it is read.
class lazy_ranking {
 public:
  explicit lazy_ranking(std::span<std::uint64_t> keys) : keys_(keys) {}

  std::uint64_t at(std::size_t rank) {
    if (rank == sorted_) {
      sort_more();
    }
    return keys_[rank];
  }

 private:
  void sort_more() {
    const std::size_t end = std::min(keys_.size(), std::max<std::size_t>(128, sorted_ * 4));
    const auto begin = keys_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    const auto middle = keys_.begin() + static_cast<std::ptrdiff_t>(end);
    std::nth_element(begin, middle - 1, keys_.end());
    std::sort(begin, middle);
    sorted_ = end;
  }

  std::span<std::uint64_t> keys_;
  std::size_t sorted_ = 0;
};

/// Weight of a token.
struct weigher {
  std::span<const float> logits;
  double max;
  double temperature;

  double operator()(token_id id) const { return det_exp((logits[id] - max) / temperature); }
};

/// The first ranks, and the sum of their weights.
struct kept_tokens {
  std::size_t count;
  double total;
};

/// Moves the first k ranks to the front of `keys`, in any order.
kept_tokens keep_top_k(std::span<std::uint64_t> keys, std::size_t k, const weigher& weight) {
  std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  if (k == 0 || k >= keys.size()) {
    k = keys.size();
  } else {
    const auto kth = keys.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(keys.begin(), kth, keys.end());
    last = *kth;
  }
  double total = 0;
  for (std::size_t i = 0; i < weight.logits.size(); ++i) {
    const auto id = static_cast<token_id>(i);
    if (rank_key(weight.logits[i], id) <= last) {
      total += weight(id);
    }
  }
  return {k, total};
}

kept_tokens keep_top_p(lazy_ranking& ranking, const kept_tokens& kept, double p,
                       const weigher& weight) {
  kept_tokens result{0, 0};
  do {
    result.total += weight(id_of(ranking.at(result.count++)));
  } while (result.total < p * kept.total && result.count < kept.count);
  return result;
}

token_id pick(lazy_ranking& ranking, const kept_tokens& kept, double u, const weigher& weight) {
  double sum = 0;
  token_id picked = id_of(ranking.at(0));
  for (std::size_t rank = 0; rank < kept.count && sum <= u * kept.total; ++rank) {
    const token_id id = id_of(ranking.at(rank));
    const double w = weight(id);
    // Sums of different order may differ in the last bit, so that the end could be reached; a token
    // without weight is not taken even then.
    if (w == 0) {
      break;
    }
    sum += w;
    picked = id;
  }
  return picked;
}

}  // namespace

std::string sampling_error(const sampling& how) {
  if (!(how.temperature >= 0 && how.temperature < infinity)) {
    return fmt::format("The temperature must be 0 (greedy) or more, but is {}.", how.temperature);
  }
  if (!(how.top_p >= 0 && how.top_p <= 1)) {
    return fmt::format("top_p must be between 0 and 1 (off), but is {}.", how.top_p);
  }
  return "";
}

token_id sampler::sample(std::span<const float> logits, const sampling& how, std::uint64_t index) {
  if (const std::string error = sampling_error(how); !error.empty()) {
    throw std::runtime_error(error);
  }
  if (logits.empty()) {
    throw std::runtime_error("There are no logits to sample from.");
  }
  const token_id first = arg_max(logits);
  if (how.temperature == 0 || how.top_k == 1) {
    return first;
  }
  return draw(logits, logits[first], how, index);
}

token_id sampler::draw(std::span<const float> logits, float max, const sampling& how,
                       std::uint64_t index) {
  const weigher weight{logits, max, how.temperature};
  keys_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    keys_[i] = rank_key(logits[i], static_cast<token_id>(i));
  }
  kept_tokens kept = keep_top_k(keys_, how.top_k, weight);
  lazy_ranking ranking({keys_.data(), kept.count});
  if (how.top_p < 1) {
    kept = keep_top_p(ranking, kept, how.top_p, weight);
  }
  return pick(ranking, kept, philox_uniform(how.seed, index), weight);
}

}  // namespace eldr::gpu
