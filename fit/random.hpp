#pragma once
/// Seeded random numbers whose sequence is the same with every standard library.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace eldr::fit {

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to shuffle and to sample.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// Uniform in [0, bound); bound > 0. The bias, bound / 2^64, does not matter here.
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }

  /// Uniform in [0, 1).
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

  template <typename T>
  void shuffle(std::span<T> items) noexcept {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[below(i)]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace eldr::fit
