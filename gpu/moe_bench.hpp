#pragma once
/// Measures the expert layer of a decode step against the machine's read bandwidth.

#include <cstdint>

#include "gpu/kernels.hpp"
#include "gpu/tensor_view.hpp"

namespace eldr::gpu {

struct moe_bench_options {
  std::uint32_t hidden = 2048;
  std::uint32_t expert_width = 768;
  std::uint32_t experts = 128;
  std::uint32_t experts_per_token = 8;
  std::uint32_t tokens = 4;          ///< Batch of the decode step.
  std::uint32_t union_experts = 32;  ///< Distinct experts of a step.
  weight_dtype dtype = weight_dtype::bf16;
  std::uint32_t threads = 1;
  std::uint32_t repeats = 15;
  /// At least this much weight memory is rotated, so that a step finds its weights cold. Never
  /// less than one whole layer.
  std::uint64_t weight_bytes_min = std::uint64_t{1} << 30;
  isa instructions = isa::best;
};

struct moe_bench_result {
  double step_s = 0;              ///< Median time of the layer, cold weights.
  double step_min_s = 0;          ///< The fastest.
  double read_s = 0;              ///< Median time to read as many cold bytes, same threads.
  double read_min_s = 0;          ///< The fastest.
  std::uint64_t union_bytes = 0;  ///< Weights of the distinct experts of a step.
  double read_bandwidth() const { return static_cast<double>(union_bytes) / read_s; }  ///< B/s
  /// Share of the read bandwidth that the layer reaches; 1 is the floor of its time.
  double of_read_bandwidth() const { return read_s / step_s; }
};

/// Steps and plain reads alternate over random weights. Throws std::runtime_error for sizes that do
/// not fit each other, or if there is not enough memory.
moe_bench_result run_moe_bench(const moe_bench_options& options);

}  // namespace eldr::gpu
