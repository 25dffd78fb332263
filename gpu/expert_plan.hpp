#pragma once
/// Who computes what in an expert layer: the (token, expert) pairs of a step, grouped by expert.

#include <cstdint>
#include <span>
#include <vector>

namespace eldr::gpu {

/// Pairs in ascending order of expert, then token, so that every expert's weights are read once and
/// a token's outputs are added in ascending order of expert. Reused from step to step.
class expert_plan {
 public:
  struct group {
    std::uint16_t expert;
    std::uint32_t begin;  ///< First pair of this expert.
    std::uint32_t end;
  };

  /// `choices` and `weights` are [tokens][k]; a token's choices are distinct and below `experts`.
  void build(std::span<const std::uint16_t> choices, std::span<const float> weights,
             std::uint32_t k, std::uint32_t experts);

  std::span<const group> groups() const { return groups_; }
  std::uint32_t pair_count() const { return static_cast<std::uint32_t>(token_of_.size()); }
  std::uint32_t token_of(std::uint32_t pair) const { return token_of_[pair]; }
  /// The k pairs of a token, in ascending order of expert, and their weights.
  std::span<const std::uint32_t> pairs_of(std::uint32_t token) const {
    return std::span(pairs_).subspan(std::size_t{token} * k_, k_);
  }
  std::span<const float> weights_of(std::uint32_t token) const {
    return std::span(weights_).subspan(std::size_t{token} * k_, k_);
  }

 private:
  std::uint32_t k_ = 0;
  std::vector<group> groups_;
  std::vector<std::uint32_t> next_;      ///< Scratch: next free pair of each expert.
  std::vector<std::uint32_t> source_;    ///< Pair -> index into choices.
  std::vector<std::uint32_t> token_of_;  ///< Pair -> token.
  std::vector<std::uint32_t> filled_;    ///< Scratch: pairs of a token placed so far.
  std::vector<std::uint32_t> pairs_;     ///< [tokens][k]
  std::vector<float> weights_;           ///< [tokens][k]
};

}  // namespace eldr::gpu
