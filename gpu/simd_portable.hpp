#pragma once
/// Eight float lanes in portable C++: the meaning of every operation of the kernels.

#include <cstdint>
#include <cstring>

namespace eldr::gpu {
namespace {

struct portable_vec {
  float lane[8];

  template <class F>
  static portable_vec each(F f) {
    portable_vec r;
    for (int i = 0; i < 8; ++i) {
      r.lane[i] = f(i);
    }
    return r;
  }

  static portable_vec set1(float x) {
    return each([&](int) { return x; });
  }
  static portable_vec load(const float* p) {
    portable_vec r;
    std::memcpy(r.lane, p, sizeof r.lane);
    return r;
  }
  static portable_vec load_bf16(const void* p) {
    std::uint16_t half[8];
    std::memcpy(half, p, sizeof half);
    return each([&](int i) { return from_bits(std::uint32_t{half[i]} << 16); });
  }
  static portable_vec load_f16(const void* p) {
    std::uint16_t half[8];
    std::memcpy(half, p, sizeof half);
    return each([&](int i) { return widen_f16(half[i]); });
  }
  void store(float* p) const { std::memcpy(p, lane, sizeof lane); }

  /// a * b + c, rounded once.
  static portable_vec fma(portable_vec a, portable_vec b, portable_vec c) {
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static portable_vec add(portable_vec a, portable_vec b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static portable_vec sub(portable_vec a, portable_vec b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static portable_vec mul(portable_vec a, portable_vec b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static portable_vec div(portable_vec a, portable_vec b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  /// The second operand if either is NaN, as SSE does.
  static portable_vec max(portable_vec a, portable_vec b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static portable_vec min(portable_vec a, portable_vec b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  /// 0 where a < b, else x (also where either is NaN).
  static portable_vec zero_if_less(portable_vec a, portable_vec b, portable_vec x) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? 0.0f : x.lane[i]; });
  }
  /// `test` where it is NaN, else x.
  static portable_vec pass_nan(portable_vec test, portable_vec x) {
    return each([&](int i) { return test.lane[i] != test.lane[i] ? test.lane[i] : x.lane[i]; });
  }
  /// x * 2^n for integral n in [-126, 127]: exact while the result is normal.
  static portable_vec scale2(portable_vec x, portable_vec n) {
    return each([&](int i) {
      const auto exponent = static_cast<std::int32_t>(n.lane[i]) + 127;
      return x.lane[i] * from_bits(static_cast<std::uint32_t>(exponent) << 23);
    });
  }

  float fold() const {
    const float* l = lane;
    return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
  }
  static void fold4(portable_vec a, portable_vec b, portable_vec c, portable_vec d, float* out) {
    out[0] = a.fold();
    out[1] = b.fold();
    out[2] = c.fold();
    out[3] = d.fold();
  }

  static void prefetch(const void* p) { __builtin_prefetch(p); }

 private:
  static float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  static float widen_f16(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
    const std::uint32_t exponent = half >> 10 & 31u;
    const std::uint32_t mantissa = half & 0x3ffu;
    if (exponent == 31) {
      // A signalling NaN becomes quiet, as the instruction does it.
      const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0;
      return from_bits(sign | 0x7f800000u | mantissa << 13 | quiet);
    }
    if (exponent != 0) {
      return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    }
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // Subnormal: exact.
    return sign != 0 ? -magnitude : magnitude;
  }
};

}  // namespace
}  // namespace eldr::gpu
