#include "gpu/paged_attention.hpp"

#include <algorithm>
#include <limits>

namespace eldr::gpu {
namespace {

/// Tokens that share the work of finding a tile's rows, and the grain of work among threads.
constexpr std::uint32_t item_tokens = 64;

/// Rows of the keys and values of positions [begin, end) for one KV head.
struct tile_rows {
  const std::byte* keys[attention_tile_keys];
  const std::byte* values[attention_tile_keys];

  tile_rows(const kv_layout& layout, std::uint32_t layer, std::uint32_t kv_head,
            const engine_memory& memory, const std::vector<block_id>& blocks, std::uint32_t begin,
            std::uint32_t end) {
    const std::size_t head_offset = std::size_t{kv_head} * layout.head_dim * bytes_of(layout.dtype);
    std::uint32_t block = begin / layout.block_tokens;
    std::uint32_t token = begin % layout.block_tokens;
    for (std::uint32_t i = 0; i < end - begin; ++i) {
      const std::byte* row = memory.kv.data() + blocks[block] * layout.block_bytes() +
                             token * layout.row_bytes() + head_offset;
      keys[i] = row + layout.k_offset(layer);
      values[i] = row + layout.v_offset(layer);
      if (++token == layout.block_tokens) {
        token = 0;
        ++block;
      }
    }
  }
};

}  // namespace

paged_attention::paged_attention(const kernels& k, thread_team& team, const kv_layout& layout,
                                 std::uint32_t heads)
    : k_(k), team_(team), layout_(layout), heads_(heads), max_(heads), sum_(heads) {}

void paged_attention::plan(const step_batch& batch) {
  items_.clear();
  std::uint32_t row = 0;
  for (const sequence_slice& slice : batch.slices) {
    const auto tokens = static_cast<std::uint32_t>(slice.tokens.size());
    for (std::uint32_t first = 0; first < tokens; first += item_tokens) {
      const std::uint32_t count = std::min(item_tokens, tokens - first);
      for (std::uint32_t kv_head = 0; kv_head < layout_.kv_heads; ++kv_head) {
        items_.push_back({&slice, row + first, slice.position + first, count, kv_head});
      }
    }
    row += tokens;
  }
  max_.reserve(row);
  sum_.reserve(row);
}

void paged_attention::run(std::uint32_t layer, const engine_memory& memory, const row_buffer& query,
                          const row_buffer& out) {
  team_.run([&](std::uint32_t rank) {
    for (std::size_t i = rank; i < items_.size(); i += team_.size()) {
      attend(items_[i], layer, memory, query, out);
    }
  });
}

void paged_attention::attend(const item& work, std::uint32_t layer, const engine_memory& memory,
                             const row_buffer& query, const row_buffer& out) {
  const std::uint32_t group = heads_ / layout_.kv_heads;
  const std::uint32_t head = work.kv_head * group;
  const std::size_t offset = std::size_t{head} * layout_.head_dim;
  const std::uint32_t width = group * layout_.head_dim;
  for (std::uint32_t row = work.row; row < work.row + work.count; ++row) {
    std::fill_n(max_.row(row) + head, group, -std::numeric_limits<float>::infinity());
    std::fill_n(sum_.row(row) + head, group, 0.0F);
    std::fill_n(out.row(row) + offset, width, 0.0F);
  }
  const std::uint32_t position_end = work.position + work.count;
  for (std::uint32_t begin = 0; begin < position_end; begin += attention_tile_keys) {
    const std::uint32_t end = std::min(begin + attention_tile_keys, position_end);
    const tile_rows rows(layout_, layer, work.kv_head, memory, work.slice->blocks, begin, end);
    // Tokens before the tile's first key do not see it.
    const std::uint32_t blind = begin > work.position ? begin - work.position : 0;
    for (std::uint32_t i = blind; i < work.count; ++i) {
      const std::uint32_t row = work.row + i;
      k_.attend({.dtype = layout_.dtype,
                 .head_dim = layout_.head_dim,
                 .heads = group,
                 .query = query.row(row) + offset,
                 .keys = rows.keys,
                 .values = rows.values,
                 .count = std::min(end, work.position + i + 1) - begin,
                 .max = max_.row(row) + head,
                 .sum = sum_.row(row) + head,
                 .out = out.row(row) + offset});
    }
  }
  for (std::uint32_t row = work.row; row < work.row + work.count; ++row) {
    for (std::uint32_t i = 0; i < width; ++i) {
      out.row(row)[offset + i] /= sum_.row(row)[head + i / layout_.head_dim];
    }
  }
}

}  // namespace eldr::gpu
