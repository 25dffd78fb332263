#pragma once
/// Causal attention over KV that lies in blocks.

#include <cstdint>
#include <vector>

#include "gpu/engine.hpp"
#include "gpu/kernels.hpp"
#include "gpu/row_buffer.hpp"
#include "gpu/thread_team.hpp"

namespace eldr::gpu {

/// Keys are visited in tiles at absolute multiples of attention_tile_keys, in order, so that a
/// query's result depends neither on the block size nor on where its chunk begins.
class paged_attention {
 public:
  /// `k` and `team` outlive this object.
  paged_attention(const kernels& k, thread_team& team, const kv_layout& layout,
                  std::uint32_t heads);

  /// Prepares a step. The batch's slices lie one after the other in the rows of query and out, and
  /// must not move until the step is done.
  void plan(const step_batch& batch);

  /// For each row (token): out = softmax(query . keys up to its position) . values, for all heads.
  /// `query` [rows][heads * head_dim] is scaled already. K and V of all rows are in memory.
  void run(std::uint32_t layer, const engine_memory& memory, const row_buffer& query,
           const row_buffer& out);

 private:
  /// Consecutive tokens of one slice, for one KV head.
  struct item {
    const sequence_slice* slice;
    std::uint32_t row;       ///< Of the first token.
    std::uint32_t position;  ///< Of the first token.
    std::uint32_t count;
    std::uint32_t kv_head;
  };
  void attend(const item& work, std::uint32_t layer, const engine_memory& memory,
              const row_buffer& query, const row_buffer& out);

  const kernels& k_;
  thread_team& team_;
  kv_layout layout_;
  std::uint32_t heads_;
  std::vector<item> items_;
  row_buffer max_;  ///< [rows][heads]: the running softmax, as the next.
  row_buffer sum_;
};

}  // namespace eldr::gpu
