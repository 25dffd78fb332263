#pragma once
/// Elementary functions whose bits depend on nothing but their argument: additions and
/// multiplications in a fixed order, no libm, no fused operations. They rely on IEEE double
/// arithmetic and on -ffp-contract=off.

#include <bit>
#include <cstdint>

namespace eldr::gpu {

/// e^x for every double, within 1 ulp (2 where the result is subnormal).
constexpr double det_exp(double x) {
  constexpr double overflow = 0x1.62e42fefa39efp+9;    // ln(2^1024), rounded down
  constexpr double underflow = -0x1.74910d52d3052p+9;  // below, the result rounds to 0
  if (!(x <= overflow)) {
    return x * 0x1p1023 * 2;  // infinity, or NaN
  }
  if (x < underflow) {
    return 0;
  }
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^52 rounds to an integer; the high part of
  // ln 2 has so many trailing zeros that n times it is exact.
  constexpr double round = 0x1.8p52;
  const double n = (x * 0x1.71547652b82fep+0 + round) - round;
  const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  // Taylor's series to r^13 / 13!; the rest is below 2^-57.
  double p = 1.0 / 6'227'020'800.0;
  p = p * r + 1.0 / 479'001'600.0;
  p = p * r + 1.0 / 39'916'800.0;
  p = p * r + 1.0 / 3'628'800.0;
  p = p * r + 1.0 / 362'880.0;
  p = p * r + 1.0 / 40'320.0;
  p = p * r + 1.0 / 5'040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 1.0 / 2.0;
  const double y = 1.0 + (r + r * r * p);
  // In two steps, since 2^n may lie outside the normal range although the result does not.
  const auto power_of_2 = [](std::int64_t e) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52);
  };
  const auto exponent = static_cast<std::int64_t>(n);
  const std::int64_t half = exponent / 2;
  return y * power_of_2(half) * power_of_2(exponent - half);
}

}  // namespace eldr::gpu
