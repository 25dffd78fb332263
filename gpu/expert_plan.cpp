#include "gpu/expert_plan.hpp"

namespace eldr::gpu {

void expert_plan::build(std::span<const std::uint16_t> choices, std::span<const float> weights,
                        std::uint32_t k, std::uint32_t experts) {
  const auto pairs = static_cast<std::uint32_t>(choices.size());
  k_ = k;
  next_.assign(experts, 0);
  for (const std::uint16_t expert : choices) {
    ++next_[expert];
  }
  groups_.clear();
  std::uint32_t begin = 0;
  for (std::uint32_t expert = 0; expert < experts; ++expert) {
    const std::uint32_t end = begin + next_[expert];
    if (end != begin) {
      groups_.push_back({static_cast<std::uint16_t>(expert), begin, end});
    }
    next_[expert] = begin;
    begin = end;
  }
  source_.resize(pairs);
  token_of_.resize(pairs);
  for (std::uint32_t i = 0; i < pairs; ++i) {
    const std::uint32_t pair = next_[choices[i]]++;
    source_[pair] = i;
    token_of_[pair] = i / k;
  }
  filled_.assign(pairs / k, 0);
  pairs_.resize(pairs);
  weights_.resize(pairs);
  for (std::uint32_t pair = 0; pair < pairs; ++pair) {
    const std::uint32_t token = token_of_[pair];
    const std::uint32_t at = token * k + filled_[token]++;
    pairs_[at] = pair;
    weights_[at] = weights[source_[pair]];
  }
}

}  // namespace eldr::gpu
