#pragma once
/// The experts of one MoE layer: SwiGLU feed-forward networks of which each token uses k.

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/expert_plan.hpp"
#include "gpu/kernels.hpp"
#include "gpu/row_buffer.hpp"
#include "gpu/thread_team.hpp"
#include "gpu/weights.hpp"

namespace eldr::gpu {

/// Reads the weights of each distinct expert once per step, whatever the number of its tokens.
class expert_layer {
 public:
  /// `k` and `team` outlive this object.
  expert_layer(const kernels& k, thread_team& team, std::uint32_t hidden,
               std::uint32_t expert_width);

  /// hidden[t] += sum over the experts e of token t, in ascending order, of
  /// weight * down_e(silu(gate_e(in[t])) * up_e(in[t])). `choices` and `weights` are [tokens][k],
  /// the choices of a token distinct and below experts.size().
  void run(std::span<const expert_weights> experts, const float* const* in, float* const* hidden,
           std::span<const std::uint16_t> choices, std::span<const float> weights,
           std::uint32_t experts_per_token);

  /// Experts that the last run read.
  std::uint32_t distinct() const { return static_cast<std::uint32_t>(plan_.groups().size()); }

 private:
  /// Calls f(group, first row, last row) for this rank's share of all rows of all active experts.
  template <class F>
  void for_share(std::uint32_t rows_per_expert, std::uint32_t rank, F f) const;
  void activate(std::span<const expert_weights> experts, std::uint32_t rank);
  void project(std::span<const expert_weights> experts, std::uint32_t rank);
  void combine(float* const* hidden, std::uint32_t tokens, std::uint32_t rank);

  const kernels& k_;
  thread_team& team_;
  expert_plan plan_;
  row_buffer gate_;  ///< [pairs][expert_width], as the next.
  row_buffer up_;
  row_buffer out_;                        ///< [pairs][hidden]
  std::vector<const float*> in_;          ///< Pair -> its token's input.
  std::vector<const float*> to_combine_;  ///< [tokens][k] -> row of out_.
};

}  // namespace eldr::gpu
