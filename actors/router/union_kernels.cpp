#include "actors/router/union_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

// The same source for both; contraction is off, so that lanes give equal bits on either path.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define ELDR_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define ELDR_VECTOR_CLONES
#endif

namespace eldr::actors::union_kernels {

namespace {

constexpr float p_min = 1e-4F;
constexpr float p_max = 0.98F;
constexpr float scale = 65536.0F;
constexpr std::size_t lanes = 8;

/// ln x for normal x > 0: exponent and a degree-7 series of ln((1 + s) / (1 - s)); about 1e-7.
inline float natural_log(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  // Mantissa in [sqrt(1/2), sqrt(2)), so that s stays small.
  const auto shifted = bits - 0x3F3504F3u;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23);
  const auto mantissa = std::bit_cast<float>((shifted & 0x007FFFFFu) + 0x3F3504F3u);
  const float s = (mantissa - 1.0F) / (mantissa + 1.0F);
  const float s2 = s * s;
  const float series =
      2.0F * s * (1.0F + s2 * (1.0F / 3.0F + s2 * (1.0F / 5.0F + s2 * (1.0F / 7.0F + s2 / 9.0F))));
  return exponent * 0.693147180559945F + series;
}

/// e^-x for x >= 0, 0 beyond 80.
inline float exp_minus(float x) {
  const float clipped = std::min(x, 80.0F);
  const float scaled = -clipped * 1.44269504088896F;
  const float whole = std::floor(scaled + 0.5F);
  const float r = (scaled - whole) * 0.693147180559945F;
  const float series =
      1.0F + r * (1.0F + r * (0.5F + r * (1.0F / 6.0F +
                                          r * (1.0F / 24.0F + r * (1.0F / 120.0F + r / 720.0F)))));
  const auto power = std::bit_cast<float>((static_cast<std::int32_t>(whole) + 127) << 23);
  return x > 80.0F ? 0.0F : series * power;
}

float fold(const float (&sum)[lanes]) {
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

inline float count_at(const std::byte* counts, std::size_t i) {
  std::uint16_t value = 0;
  std::memcpy(&value, counts + 2 * i, 2);
  return static_cast<float>(value);
}

}  // namespace

ELDR_VECTOR_CLONES void blend(std::span<const std::byte> counts, float tokens, float m,
                              std::span<const float> mean, std::span<float> p) {
  const float own = m / tokens;
  const float others = 1.0F - m;
  const auto* in = counts.data();
  for (std::size_t i = 0; i < p.size(); ++i) {
    p[i] = std::clamp(count_at(in, i) * own + mean[i] * others, p_min, p_max);
  }
}

ELDR_VECTOR_CLONES void update_mean(std::span<const std::byte> counts, float tokens, float rate,
                                    std::span<float> mean) {
  const float own = rate / tokens;
  const float keep = 1.0F - rate;
  const auto* in = counts.data();
  for (std::size_t i = 0; i < mean.size(); ++i) {
    mean[i] = count_at(in, i) * own + mean[i] * keep;
  }
}

ELDR_VECTOR_CLONES void increments(std::span<const float> p, std::span<std::int32_t> increment) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    increment[i] = static_cast<std::int32_t>(0.5F - scale * natural_log(1.0F - p[i]));
  }
}

ELDR_VECTOR_CLONES float apply(std::span<const std::int32_t> increment, int sign,
                               std::span<std::int64_t> sum, std::span<float> free) {
  float taken[lanes] = {};
  for (std::size_t i = 0; i < increment.size(); ++i) {
    sum[i] += sign * static_cast<std::int64_t>(increment[i]);
  }
  const auto whole = increment.size() / lanes * lanes;
  for (std::size_t i = 0; i < whole; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      // A worker's sum stays far below 2^31: 4,096 requests of the largest increment are 2^30.
      free[i + lane] =
          exp_minus(static_cast<float>(static_cast<std::int32_t>(sum[i + lane])) * (1.0F / scale));
      taken[lane] += 1.0F - free[i + lane];
    }
  }
  for (std::size_t i = whole; i < increment.size(); ++i) {
    free[i] = exp_minus(static_cast<float>(static_cast<std::int32_t>(sum[i])) * (1.0F / scale));
    taken[i - whole] += 1.0F - free[i];
  }
  return fold(taken);
}

ELDR_VECTOR_CLONES float growth(std::span<const float> p, std::span<const float> free) {
  float sum[lanes] = {};
  const auto whole = p.size() / lanes * lanes;
  for (std::size_t i = 0; i < whole; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      sum[lane] += p[i + lane] * free[i + lane];
    }
  }
  for (std::size_t i = whole; i < p.size(); ++i) {
    sum[i - whole] += p[i] * free[i];
  }
  return fold(sum);
}

}  // namespace eldr::actors::union_kernels
