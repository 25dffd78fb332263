#include "gpu/batch_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/sampler.hpp"

namespace eldr::gpu {

batch_checker::batch_checker(const model_geometry& geometry, const kv_layout& layout)
    : geometry_(geometry), layout_(layout) {}

std::string batch_checker::check(const step_batch& batch, const engine_memory& memory) {
  if (batch.slices.empty()) {
    return "The step has no slices; submit at least one.";
  }
  if (std::string error = check_memory(memory); !error.empty()) {
    return error;
  }
  for (const sequence_slice& slice : batch.slices) {
    if (std::string error = check_slice(slice, memory); !error.empty()) {
      return error;
    }
  }
  return check_writers(batch);
}

std::string batch_checker::check_memory(const engine_memory& memory) const {
  const std::size_t kv_bytes = std::size_t{memory.block_count} * layout_.block_bytes();
  if (memory.kv.size() < kv_bytes) {
    return fmt::format("The KV pool has {} bytes, but {} blocks need {}.", memory.kv.size(),
                       memory.block_count, kv_bytes);
  }
  const std::size_t cells = std::size_t{memory.block_count} * geometry_.layers * geometry_.experts;
  if (!memory.rows.empty() && memory.rows.size() < cells) {
    return fmt::format("The signature rows have {} cells, but {} blocks need {}.",
                       memory.rows.size(), memory.block_count, cells);
  }
  return {};
}

std::string batch_checker::check_slice(const sequence_slice& slice,
                                       const engine_memory& memory) const {
  const auto error = [&](const std::string& text) {
    return fmt::format("Sequence {}: {}", slice.sequence, text);
  };
  if (slice.tokens.empty()) {
    return error("the slice has no tokens; give at least one.");
  }
  const std::size_t end = std::size_t{slice.position} + slice.tokens.size();
  if (end > geometry_.context_max) {
    return error(fmt::format("position {} exceeds the model's context of {} tokens.", end,
                             geometry_.context_max));
  }
  for (const token_id token : slice.tokens) {
    if (token >= geometry_.vocab) {
      return error(
          fmt::format("token id {} is outside the vocabulary of {}.", token, geometry_.vocab));
    }
  }
  if (slice.blocks.size() * layout_.block_tokens < end) {
    return error(fmt::format("{} blocks of {} tokens do not cover {} tokens.", slice.blocks.size(),
                             layout_.block_tokens, end));
  }
  for (const block_id block : slice.blocks) {
    if (block >= memory.block_count) {
      return error(
          fmt::format("block {} is outside the pool of {} blocks.", block, memory.block_count));
    }
  }
  if (slice.write_rows && slice.position % layout_.block_tokens != 0) {
    return error(fmt::format(
        "signature rows are set for whole blocks, but position {} is not a multiple of {}.",
        slice.position, layout_.block_tokens));
  }
  if (slice.write_rows && memory.rows.empty()) {
    return error("signature rows are to be written, but this pool has none.");
  }
  if (slice.sample) {
    if (const std::string fault = sampling_error(*slice.sample); !fault.empty()) {
      return error(fault);
    }
  }
  return {};
}

std::string batch_checker::check_writers(const step_batch& batch) {
  writers_.clear();
  for (std::size_t s = 0; s < batch.slices.size(); ++s) {
    const sequence_slice& slice = batch.slices[s];
    const std::size_t first = slice.position / layout_.block_tokens;
    const std::size_t last = (slice.position + slice.tokens.size() - 1) / layout_.block_tokens;
    for (std::size_t b = first; b <= last; ++b) {
      writers_.emplace_back(slice.blocks[b], s);
    }
  }
  std::sort(writers_.begin(), writers_.end());
  const auto same_block = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto twice = std::adjacent_find(writers_.begin(), writers_.end(), same_block);
  if (twice != writers_.end()) {
    return fmt::format("Block {} would be written twice in one step.", twice->first);
  }
  for (std::size_t s = 0; s < batch.slices.size(); ++s) {
    const sequence_slice& slice = batch.slices[s];
    const std::size_t full = slice.position / layout_.block_tokens;
    for (std::size_t b = 0; b < full; ++b) {
      const auto at = std::lower_bound(writers_.begin(), writers_.end(),
                                       std::pair{slice.blocks[b], std::size_t{0}});
      if (at != writers_.end() && at->first == slice.blocks[b]) {
        return fmt::format("Block {} is read by sequence {} while sequence {} writes it.",
                           at->first, slice.sequence, batch.slices[at->second].sequence);
      }
    }
  }
  return {};
}

}  // namespace eldr::gpu
