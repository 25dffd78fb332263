#include "gpu/rope_table.hpp"

#include <cmath>

#include "gpu/det_math.hpp"

namespace eldr::gpu {
namespace {

/// ln(x) for x > 0: x = m * 2^e with m near 1, and the series of artanh.
double log_of(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // Exact.
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  double sum = 0;
  for (int k = 25; k >= 1; k -= 2) {
    sum = sum * (s * s) + 1.0 / k;
  }
  return exponent * 0.69314718055994531 + 2 * s * sum;
}

struct sine_cosine {
  double sin;
  double cos;
};

/// Taylor series after reduction to [-pi/4, pi/4], for angles from 0 to about 2^20.
sine_cosine sine_cosine_of(double angle) {
  const double n = std::floor(angle * 0.63661977236758134 + 0.5);
  // pi/2 in two parts, the first of few bits, so that n times it is exact (fdlibm's pio2_1 and
  // pio2_1t).
  const double r = (angle - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
  double sin = 1;
  double cos = 1;
  for (int k = 18; k >= 2; k -= 2) {
    sin = 1 - sin * (r * r) / (k * (k + 1));
    cos = 1 - cos * (r * r) / (k * (k - 1));
  }
  sin *= r;
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0:
      return {sin, cos};
    case 1:
      return {cos, -sin};
    case 2:
      return {-sin, -cos};
    default:
      return {-cos, sin};
  }
}

}  // namespace

rope_table::rope_table(std::uint32_t positions, std::uint32_t head_dim, double theta)
    : half_(head_dim / 2), cos_(positions * half_), sin_(positions * half_) {
  const double log_theta = log_of(theta);
  for (std::size_t i = 0; i < half_; ++i) {
    const double frequency = det_exp(-2.0 * static_cast<double>(i) / head_dim * log_theta);
    for (std::size_t p = 0; p < positions; ++p) {
      const sine_cosine value = sine_cosine_of(static_cast<double>(p) * frequency);
      cos_[p * half_ + i] = static_cast<float>(value.cos);
      sin_[p * half_ + i] = static_cast<float>(value.sin);
    }
  }
}

}  // namespace eldr::gpu
