#pragma once
/// What every model runner demands of a step before it touches memory.

#include <string>
#include <utility>
#include <vector>

#include "gpu/engine.hpp"

namespace eldr::gpu {

/// Checks a batch against the model and the memory. Keeps its scratch space between calls.
class batch_checker {
 public:
  batch_checker(const model_geometry& geometry, const kv_layout& layout);

  /// Empty if `batch` may run: tokens and positions fit the model, blocks exist and cover each
  /// slice, no block that one slice writes is used by another, slices that write rows start at a
  /// block boundary, and sampling parameters are in range. Otherwise one sentence that says what is
  /// wrong.
  std::string check(const step_batch& batch, const engine_memory& memory);

 private:
  std::string check_memory(const engine_memory& memory) const;
  std::string check_slice(const sequence_slice& slice, const engine_memory& memory) const;
  std::string check_writers(const step_batch& batch);

  model_geometry geometry_;
  kv_layout layout_;
  std::vector<std::pair<block_id, std::size_t>> writers_;  ///< (block, slice that writes it).
};

}  // namespace eldr::gpu
