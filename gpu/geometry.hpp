#pragma once
/// Shapes of a model and of its KV cache.

#include <cstddef>
#include <cstdint>

namespace eldr::gpu {

using token_id = std::uint32_t;
using block_id = std::uint32_t;

/// What the rest of the system needs to know of a model.
struct model_geometry {
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
  std::uint32_t hidden = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t expert_width = 0;
  std::uint32_t vocab = 0;
  std::uint32_t context_max = 0;  ///< Positions that the model was made for.

  bool operator==(const model_geometry&) const = default;
};

enum class kv_dtype : std::uint8_t { f32, bf16 };
constexpr std::size_t bytes_of(kv_dtype t) { return t == kv_dtype::f32 ? 4 : 2; }

/// How KV is laid out: [block][layer][K|V][token in block][kv head][head dim], so that a block is
/// one contiguous range.
struct kv_layout {
  std::uint32_t block_tokens = 16;
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  kv_dtype dtype = kv_dtype::f32;

  std::size_t row_bytes() const { return std::size_t{kv_heads} * head_dim * bytes_of(dtype); }
  std::size_t plane_bytes() const { return block_tokens * row_bytes(); }  ///< K or V of a layer.
  std::size_t block_bytes() const { return 2 * layers * plane_bytes(); }
  std::size_t k_offset(std::uint32_t layer) const { return 2 * layer * plane_bytes(); }
  std::size_t v_offset(std::uint32_t layer) const { return k_offset(layer) + plane_bytes(); }
  std::uint32_t blocks_for(std::uint32_t tokens) const {
    return (tokens + block_tokens - 1) / block_tokens;
  }

  bool operator==(const kv_layout&) const = default;
};

}  // namespace eldr::gpu
