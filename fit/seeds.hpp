#pragma once
/// The streams of random numbers of a fit. Each purpose has its own, so that none disturbs another.

#include <cstdint>

#include "fit/random.hpp"

namespace eldr::fit {

enum class random_stream : std::uint64_t { sample, splits, pairs, balanced, vanilla };

/// The seed of a purpose, and of one of its up to 16 parts.
inline std::uint64_t seed_of(std::uint64_t seed, random_stream purpose,
                             std::uint64_t part = 0) noexcept {
  random_source root(seed);
  random_source stream(root.next() + static_cast<std::uint64_t>(purpose) * 16 + part);
  return stream.next();
}

}  // namespace eldr::fit
