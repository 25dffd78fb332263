#pragma once
/// A KV pool on the heap for tests, filled with poison so that unwritten data shows.

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "gpu/engine.hpp"

namespace eldr::gpu::test {

class kv_memory {
 public:
  kv_memory(const kv_layout& layout, const model_geometry& geometry, std::uint32_t block_count)
      : block_bytes_(layout.block_bytes()),
        row_cells_(std::size_t{geometry.layers} * geometry.experts),
        kv_(block_count * block_bytes_ + 64, std::byte{0xff}),
        rows_(block_count * row_cells_, std::int8_t{-7}),
        block_count_(block_count) {}

  engine_memory view() {
    void* start = kv_.data();
    std::size_t space = kv_.size();
    std::align(64, block_count_ * block_bytes_, start, space);
    return {{static_cast<std::byte*>(start), block_count_ * block_bytes_}, rows_, block_count_};
  }
  engine_memory view_without_rows() {
    engine_memory memory = view();
    memory.rows = {};
    return memory;
  }
  /// Moves a block as a KV pull does: its bytes, nothing else.
  void copy_block(block_id from, kv_memory& other, block_id to) {
    std::memcpy(other.view().kv.data() + to * block_bytes_, view().kv.data() + from * block_bytes_,
                block_bytes_);
  }
  std::span<const std::int8_t> rows() const { return rows_; }
  std::size_t row_cells() const { return row_cells_; }

 private:
  std::size_t block_bytes_;
  std::size_t row_cells_;
  std::vector<std::byte> kv_;
  std::vector<std::int8_t> rows_;
  std::uint32_t block_count_;
};

inline std::vector<block_id> block_range(block_id first, std::uint32_t count) {
  std::vector<block_id> blocks(count);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

}  // namespace eldr::gpu::test
