#pragma once
/// The forward pass of a Qwen3-MoE model on the host.

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/engine.hpp"
#include "gpu/expert_layer.hpp"
#include "gpu/kernels.hpp"
#include "gpu/model_config.hpp"
#include "gpu/paged_attention.hpp"
#include "gpu/rope_table.hpp"
#include "gpu/row_buffer.hpp"
#include "gpu/thread_team.hpp"
#include "gpu/weights.hpp"

namespace eldr::gpu {

/// Computes one step at a time in buffers that grow to the largest step seen. A token's result
/// depends on its sequence only: not on the step's other slices, on where a chunk begins, on the
/// block size or on threads. The batch has passed a batch_checker.
class host_forward {
 public:
  /// `k` and `weights` outlive this object.
  host_forward(const model_config& config, const model_weights& weights, const kv_layout& layout,
               const kernels& k, std::uint32_t threads);

  /// Runs all layers: writes K, V and signature rows, and fills in the choices (if the batch asks
  /// for them) and the distinct experts. result.slices has one entry per slice.
  void run_layers(const step_batch& batch, const engine_memory& memory, step_result& result);

  /// Logits [vocab] of the last token of each listed slice (ascending) of the batch just run, one
  /// row each; valid until the next call.
  const row_buffer& logits(const step_batch& batch, std::span<const std::uint32_t> slices);

 private:
  struct norm_weights {
    std::vector<float> attention;
    std::vector<float> expert;
    std::vector<float> q;
    std::vector<float> k;
  };
  /// One token of the step.
  struct step_row {
    const sequence_slice* slice;
    token_id token;
    std::uint32_t position;
  };

  void prepare(const step_batch& batch);
  /// Adds attention to hidden_ and leaves the experts' input in normed_.
  void attention_layer(std::uint32_t layer, const engine_memory& memory);
  void rotate_and_store(std::uint32_t row, std::uint32_t layer, const engine_memory& memory);
  void choose_experts(std::uint32_t row);
  void set_signature_rows(std::uint32_t layer, const step_batch& batch,
                          const engine_memory& memory) const;
  void record_choices(std::uint32_t layer, step_result& result) const;
  /// Calls f(row) for every row of the step, shared among the threads.
  template <class F>
  void for_rows(F f);
  /// out = w * in for the step's rows, the rows of w shared among the threads.
  void project(const tensor_view& w, const row_buffer& in, const row_buffer& out,
               std::uint32_t rank) const;

  model_config config_;
  model_geometry geometry_;
  const model_weights& weights_;
  kv_layout layout_;
  const kernels& k_;
  float query_scale_;
  std::vector<norm_weights> norms_;
  std::vector<float> final_norm_;
  rope_table rope_;
  thread_team team_;
  paged_attention attention_;
  expert_layer experts_;

  std::vector<step_row> rows_;
  row_buffer hidden_;
  row_buffer normed_;
  row_buffer q_;
  row_buffer key_;
  row_buffer value_;
  row_buffer attended_;
  row_buffer projected_;
  row_buffer gate_;
  row_buffer logits_;
  std::vector<std::uint16_t> choices_;  ///< [rows][k]
  std::vector<float> choice_weights_;   ///< [rows][k]
};

}  // namespace eldr::gpu
