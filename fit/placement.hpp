#pragma once
/// Expert-parallel placement: which rank of a decode worker holds which expert. Source of the idea:
/// METRO (arXiv 2512.09277); a layer's time follows the activated experts of its busiest rank.

#include <cstdint>
#include <span>
#include <vector>

namespace eldr::fit {

/// Ranks of the experts, [layers][experts], from a decode pattern [layers][experts]: experts in the
/// order of their expected activation in a step of `batch` tokens, 1 - (1 - p)^batch, each to the
/// rank with the least expected activation that still has room. Every rank gets experts / ranks of
/// them. Throws fit_error when this is no whole number.
std::vector<std::uint16_t> place_experts(std::span<const float> pattern, std::uint32_t layers,
                                         std::uint32_t experts, std::uint32_t ranks,
                                         std::uint32_t batch);

}  // namespace eldr::fit
