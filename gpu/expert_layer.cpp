#include "gpu/expert_layer.hpp"

#include <algorithm>

namespace eldr::gpu {
namespace {

/// Rows that one thread takes at a time: what the matrix kernels work on together.
constexpr std::uint32_t row_grain = 8;

}  // namespace

expert_layer::expert_layer(const kernels& k, thread_team& team, std::uint32_t hidden,
                           std::uint32_t expert_width)
    : k_(k), team_(team), gate_(expert_width), up_(expert_width), out_(hidden) {}

void expert_layer::run(std::span<const expert_weights> experts, const float* const* in,
                       float* const* hidden, std::span<const std::uint16_t> choices,
                       std::span<const float> weights, std::uint32_t experts_per_token) {
  plan_.build(choices, weights, experts_per_token, static_cast<std::uint32_t>(experts.size()));
  const std::uint32_t pairs = plan_.pair_count();
  const std::uint32_t tokens = pairs / experts_per_token;
  gate_.reserve(pairs);
  up_.reserve(pairs);
  out_.reserve(pairs);
  in_.resize(pairs);
  to_combine_.resize(pairs);
  for (std::uint32_t pair = 0; pair < pairs; ++pair) {
    in_[pair] = in[plan_.token_of(pair)];
  }
  std::size_t at = 0;
  for (std::uint32_t token = 0; token < tokens; ++token) {
    for (const std::uint32_t pair : plan_.pairs_of(token)) {
      to_combine_[at++] = out_.row(pair);
    }
  }
  team_.run([&](std::uint32_t rank) { activate(experts, rank); });
  team_.run([&](std::uint32_t rank) { project(experts, rank); });
  team_.run([&](std::uint32_t rank) { combine(hidden, tokens, rank); });
}

template <class F>
void expert_layer::for_share(std::uint32_t rows_per_expert, std::uint32_t rank, F f) const {
  const auto groups = plan_.groups();
  const auto total = static_cast<std::uint32_t>(groups.size()) * rows_per_expert;
  index_range share = share_of(total, rank, team_.size(), row_grain);
  while (share.begin < share.end) {
    const std::uint32_t group = share.begin / rows_per_expert;
    const std::uint32_t first = group * rows_per_expert;
    const std::uint32_t end = std::min(share.end, first + rows_per_expert);
    f(groups[group], share.begin - first, end - first);
    share.begin = end;
  }
}

void expert_layer::activate(std::span<const expert_weights> experts, std::uint32_t rank) {
  for_share(gate_.cols(), rank,
            [&](const expert_plan::group& group, std::uint32_t begin, std::uint32_t end) {
              const expert_weights& expert = experts[group.expert];
              const std::uint32_t tokens = group.end - group.begin;
              const float* const* in = in_.data() + group.begin;
              k_.matmul(expert.gate, begin, end, in, gate_.from(group.begin), tokens);
              k_.matmul(expert.up, begin, end, in, up_.from(group.begin), tokens);
              for (std::uint32_t pair = group.begin; pair < group.end; ++pair) {
                k_.silu_mul(gate_.row(pair) + begin, up_.row(pair) + begin, end - begin);
              }
            });
}

void expert_layer::project(std::span<const expert_weights> experts, std::uint32_t rank) {
  for_share(out_.cols(), rank,
            [&](const expert_plan::group& group, std::uint32_t begin, std::uint32_t end) {
              k_.matmul(experts[group.expert].down, begin, end, gate_.from(group.begin),
                        out_.from(group.begin), group.end - group.begin);
            });
}

void expert_layer::combine(float* const* hidden, std::uint32_t tokens, std::uint32_t rank) {
  const index_range share = share_of(tokens, rank, team_.size(), 1);
  for (std::uint32_t token = share.begin; token < share.end; ++token) {
    const std::span<const float> weights = plan_.weights_of(token);
    k_.combine(hidden[token], to_combine_.data() + token * weights.size(), weights.data(),
               static_cast<std::uint32_t>(weights.size()), out_.cols());
  }
}

}  // namespace eldr::gpu
