#pragma once
/// Mean decode patterns: the share of decode tokens that choose each expert.

#include <cstdint>
#include <span>
#include <vector>

#include "fit/counts.hpp"

namespace eldr::fit {

/// Mean over the requests `which` of (decode count / decode tokens), [layers][experts], each
/// request with the same weight. Requests without decode tokens are left out; empty when none has
/// any.
std::vector<float> mean_decode_pattern(const trace_counts& counts,
                                       std::span<const std::uint32_t> which);

/// Expected number of distinct experts, averaged over layers, in a decode step of `batch` requests
/// of which one has the pattern `one` and the others are drawn from those behind the mean pattern
/// `others`: mean over layers of the sum over e of 1 - (1 - one_e)(1 - others_e)^(batch - 1).
double expected_union(std::span<const float> one, std::span<const float> others,
                      std::uint32_t layers, std::uint32_t batch);

}  // namespace eldr::fit
