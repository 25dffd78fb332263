#pragma once
/// The engine: runs steps of the model over a paged KV pool. Router, prefill and decoder actors see
/// only this interface; they do not know which implementation they drive.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::gpu {

/// How a token is drawn from logits. Deterministic in (seed, index of the token): see sampler.hpp.
struct sampling {
  std::uint64_t seed = 0;
  float temperature = 0;     ///< 0: greedy.
  std::uint32_t top_k = 0;   ///< 0: off.
  float top_p = 1;           ///< 1: off.
};

/// A run of consecutive tokens of one sequence: a prefill chunk, or one decode token.
struct sequence_slice {
  std::uint64_t sequence = 0;          ///< The caller's name for it, echoed in the result.
  std::vector<token_id> tokens;        ///< Not empty.
  std::uint32_t position = 0;          ///< Of tokens[0]; KV of 0 .. position-1 is in `blocks`.
  std::vector<block_id> blocks;        ///< Covers at least position + tokens.size() tokens.
  /// Sample a token after the last one of the slice, with index position + tokens.size().
  std::optional<sampling> sample;
  /// Prefill: set the signature rows of the blocks that the slice fills; then `position` is a
  /// multiple of the block size. A block's row is set, never added to.
  bool write_rows = false;
};

struct step_batch {
  std::vector<sequence_slice> slices;  ///< Not empty.
  bool record_choices = false;
  bool hash_logits = false;
};

struct slice_result {
  std::uint64_t sequence = 0;
  std::optional<token_id> token;       ///< If the slice asked for a sample.
  std::uint64_t logits_hash = 0;       ///< Of the last row's bits, if asked for.
  std::vector<std::uint16_t> choices;  ///< [tokens][layers][k] expert ids, best first, if asked for.
};

struct step_result {
  std::vector<slice_result> slices;              ///< In the order of the batch.
  std::vector<std::uint16_t> distinct_experts;   ///< Per layer: experts whose weights were read.
  double compute_s = 0;                          ///< Time spent in the model.
  std::string error;  ///< Not empty: the step failed, its private blocks hold anything.
};

using step_callback = std::function<void(step_result)>;

/// Asynchronous: submit() returns at once, `done` comes later from another thread (or from a
/// simulation's driver). Steps run one at a time in order of submission. Nothing that a submitted
/// step names (blocks, rows) may be reused before its `done`.
class engine {
 public:
  virtual ~engine() = default;
  virtual const model_geometry& geometry() const noexcept = 0;
  virtual const kv_layout& layout() const noexcept = 0;
  /// Equal fingerprints give equal bits: weights, code path, KV dtype, kernel version.
  virtual std::uint64_t fingerprint() const noexcept = 0;
  /// For people: "host (avx2, f32 KV)".
  virtual std::string backend() const = 0;
  virtual bool is_end_token(token_id) const noexcept = 0;
  virtual void submit(step_batch, step_callback done) = 0;
};

/// The memory that an engine works on, owned by the node (KV pool: registered with the transport).
struct engine_memory {
  std::span<std::byte> kv;          ///< block_count * layout.block_bytes(), 64-byte aligned.
  std::span<std::int8_t> rows;      ///< block_count * layers * experts, or empty (decode nodes).
  std::uint32_t block_count = 0;
};

/// Runs one step in the calling thread: what an engine thread, a test or a simulation calls.
class model_runner {
 public:
  virtual ~model_runner() = default;
  virtual const model_geometry& geometry() const noexcept = 0;
  virtual const kv_layout& layout() const noexcept = 0;
  virtual std::uint64_t fingerprint() const noexcept = 0;
  virtual std::string backend() const = 0;
  virtual bool is_end_token(token_id) const noexcept = 0;
  /// Never throws; failures are in step_result::error.
  virtual step_result run(const step_batch&, const engine_memory&) = 0;
};

}  // namespace eldr::gpu
