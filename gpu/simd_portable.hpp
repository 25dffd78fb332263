#pragma once
/// Eight float lanes in GCC's and Clang's vector extension, for any processor: the meaning of every
/// operation of the kernels.

#include <cstdint>
#include <cstring>

namespace eldr::gpu {
namespace {

struct portable_vec {
  using floats = float __attribute__((vector_size(32)));
  using integers = std::int32_t __attribute__((vector_size(32)));
  using words = std::uint32_t __attribute__((vector_size(32)));
  using halves = std::uint16_t __attribute__((vector_size(16)));

  floats v;

  static portable_vec set1(float x) { return {floats{x, x, x, x, x, x, x, x}}; }
  static portable_vec load(const float* p) { return {from_memory<floats>(p)}; }
  static portable_vec load_bf16(const void* p) {
    const words wide = __builtin_convertvector(from_memory<halves>(p), words);
    return {reinterpret_cast<floats>(wide << 16)};
  }
  static portable_vec load_f16(const void* p) {
    const auto half = from_memory<halves>(p);
    portable_vec r;
    for (int i = 0; i < 8; ++i) {
      r.v[i] = widen_f16(half[i]);
    }
    return r;
  }
  void store(float* p) const { std::memcpy(p, &v, sizeof v); }

  /// a * b + c, rounded once. A call of fmaf for each lane where the target has no instruction.
  static portable_vec fma(portable_vec a, portable_vec b, portable_vec c) {
    portable_vec r;
    for (int i = 0; i < 8; ++i) {
      r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    }
    return r;
  }
  static portable_vec add(portable_vec a, portable_vec b) { return {a.v + b.v}; }
  static portable_vec sub(portable_vec a, portable_vec b) { return {a.v - b.v}; }
  static portable_vec mul(portable_vec a, portable_vec b) { return {a.v * b.v}; }
  static portable_vec div(portable_vec a, portable_vec b) { return {a.v / b.v}; }
  /// The second operand if either is NaN, as SSE does.
  static portable_vec max(portable_vec a, portable_vec b) { return {a.v > b.v ? a.v : b.v}; }
  static portable_vec min(portable_vec a, portable_vec b) { return {a.v < b.v ? a.v : b.v}; }
  /// 0 where a < b, else x (also where either is NaN).
  static portable_vec zero_if_less(portable_vec a, portable_vec b, portable_vec x) {
    return {a.v < b.v ? floats{} : x.v};
  }
  /// `test` where it is NaN, else x.
  static portable_vec pass_nan(portable_vec test, portable_vec x) {
    return {test.v != test.v ? test.v : x.v};
  }
  /// x * 2^n for integral n in [-126, 127]: exact while the result is normal.
  static portable_vec scale2(portable_vec x, portable_vec n) {
    const words exponent = reinterpret_cast<words>(__builtin_convertvector(n.v, integers) + 127);
    return {x.v * reinterpret_cast<floats>(exponent << 23)};
  }

  float fold() const { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }
  static void fold4(portable_vec a, portable_vec b, portable_vec c, portable_vec d, float* out) {
    out[0] = a.fold();
    out[1] = b.fold();
    out[2] = c.fold();
    out[3] = d.fold();
  }

  static void prefetch(const void* p) { __builtin_prefetch(p); }

 private:
  template <class T>
  static T from_memory(const void* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  static float from_bits(std::uint32_t bits) { return from_memory<float>(&bits); }
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
