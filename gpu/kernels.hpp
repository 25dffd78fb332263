#pragma once
/// The arithmetic of the forward pass, on rows of floats.
///
/// Bits: every implementation gives equal bits. Sums run over eight lanes (element i goes to lane
/// i mod 8), one fused multiply-add after the other, and fold as
/// ((l0+l1)+(l2+l3)) + ((l4+l5)+(l6+l7)). So a result depends on its own row and weights only:
/// never on how many rows, tokens or threads are worked on together.

#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu/geometry.hpp"
#include "gpu/tensor_view.hpp"

namespace eldr::gpu {

/// Keys are visited in tiles that start at absolute multiples of this.
constexpr std::uint32_t attention_tile_keys = 64;

/// One token's query heads that share a KV head, against the visible keys of one tile. `max`, `sum`
/// and `out` carry the softmax over the tiles so far; before the first they are -infinity, 0 and 0.
struct attention_tile {
  kv_dtype dtype = kv_dtype::f32;
  std::uint32_t head_dim = 0;
  std::uint32_t heads = 0;                   ///< Query heads, 1 or more.
  const float* query = nullptr;              ///< [heads][head_dim], scaled.
  const std::byte* const* keys = nullptr;    ///< Row of each visible key, for this KV head.
  const std::byte* const* values = nullptr;  ///< Likewise.
  std::uint32_t count = 0;                   ///< Visible keys, 1 to attention_tile_keys.
  float* max = nullptr;                      ///< [heads]
  float* sum = nullptr;                      ///< [heads]
  float* out = nullptr;                      ///< [heads][head_dim]
};

struct kernels {
  const char* name;

  /// y[t][r] = dot(row r of w, x[t]) for r in [row_begin, row_end): x and y hold one pointer per
  /// token. Each weight is read from memory once for all tokens.
  void (*matmul)(const tensor_view& w, std::uint32_t row_begin, std::uint32_t row_end,
                 const float* const* x, float* const* y, std::uint32_t tokens);

  /// out = the n values at `in`, as f32 (exact).
  void (*widen)(weight_dtype dtype, const std::byte* in, float* out, std::uint32_t n);

  /// Stores n values in the dtype of the KV cache; bf16 rounds to nearest even.
  void (*store_kv)(kv_dtype dtype, const float* in, std::byte* out, std::uint32_t n);

  /// out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, float* out, std::uint32_t n);

  /// Rotates (x[i], x[i + half]) by the angle of cos[i], sin[i], then scales by `scale`.
  void (*rope)(float* x, const float* cos, const float* sin, float scale, std::uint32_t half);

  /// x = exp(x - max(x)) / sum.
  void (*softmax)(float* x, std::uint32_t n);

  /// gate = gate / (1 + exp(-gate)) * up.
  void (*silu_mul)(float* gate, const float* up, std::uint32_t n);

  /// x = x + y.
  void (*add)(float* x, const float* y, std::uint32_t n);

  /// x = x + sum over j of weight[j] * y[j], in order of j.
  void (*combine)(float* x, const float* const* y, const float* weight, std::uint32_t count,
                  std::uint32_t n);

  /// Adds one tile to the running softmax of `heads` queries.
  void (*attend)(const attention_tile& tile);

  /// out = exp(x), element by element: what softmax, silu_mul and attend use. 0 below -87.33.
  void (*exp)(const float* x, float* out, std::uint32_t n);

  /// Reads n bytes (of whole 256) and returns something that depends on them: the floor that matmul
  /// is measured against.
  std::uint64_t (*stream_read)(const std::byte* data, std::size_t n);
};

enum class isa : std::uint8_t { best, avx2, portable };

/// Throws std::runtime_error if this processor cannot run `which`.
const kernels& select_kernels(isa which = isa::best);

bool cpu_has_avx2();

}  // namespace eldr::gpu
