#pragma once
/// Eight float lanes on AVX2, FMA and F16C; see simd_portable.hpp for what each operation means.
/// Included only by a file that is compiled for these instructions.

#include <immintrin.h>

namespace eldr::gpu {
namespace {

#define ELDR_LANES [[gnu::always_inline]] inline

struct avx2_vec {
  __m256 v;

  ELDR_LANES static avx2_vec set1(float x) { return {_mm256_set1_ps(x)}; }
  ELDR_LANES static avx2_vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  ELDR_LANES static avx2_vec load_bf16(const void* p) {
    const __m128i half = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
  }
  ELDR_LANES static avx2_vec load_f16(const void* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
  }
  ELDR_LANES void store(float* p) const { _mm256_storeu_ps(p, v); }

  ELDR_LANES static avx2_vec fma(avx2_vec a, avx2_vec b, avx2_vec c) {
    return {_mm256_fmadd_ps(a.v, b.v, c.v)};
  }
  ELDR_LANES static avx2_vec add(avx2_vec a, avx2_vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  ELDR_LANES static avx2_vec sub(avx2_vec a, avx2_vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  ELDR_LANES static avx2_vec mul(avx2_vec a, avx2_vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  ELDR_LANES static avx2_vec div(avx2_vec a, avx2_vec b) { return {_mm256_div_ps(a.v, b.v)}; }
  ELDR_LANES static avx2_vec max(avx2_vec a, avx2_vec b) { return {_mm256_max_ps(a.v, b.v)}; }
  ELDR_LANES static avx2_vec min(avx2_vec a, avx2_vec b) { return {_mm256_min_ps(a.v, b.v)}; }
  ELDR_LANES static avx2_vec zero_if_less(avx2_vec a, avx2_vec b, avx2_vec x) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ), x.v)};
  }
  ELDR_LANES static avx2_vec pass_nan(avx2_vec test, avx2_vec x) {
    return {_mm256_blendv_ps(x.v, test.v, _mm256_cmp_ps(test.v, test.v, _CMP_UNORD_Q))};
  }
  ELDR_LANES static avx2_vec scale2(avx2_vec x, avx2_vec n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvttps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(x.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
  }

  ELDR_LANES float fold() const {
    const __m256 pairs = _mm256_hadd_ps(v, v);
    const __m256 quads = _mm256_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(
        _mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
  }
  /// Four folds for the price of three horizontal adds.
  ELDR_LANES static void fold4(avx2_vec a, avx2_vec b, avx2_vec c, avx2_vec d, float* out) {
    const __m256 quads = _mm256_hadd_ps(_mm256_hadd_ps(a.v, b.v), _mm256_hadd_ps(c.v, d.v));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
  }

  ELDR_LANES static void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
};

#undef ELDR_LANES

}  // namespace
}  // namespace eldr::gpu
