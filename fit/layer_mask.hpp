#pragma once
/// Which layers of a signature to use.

#include <cstdint>
#include <vector>

#include "fit/rho.hpp"

namespace eldr::fit {

struct mask_step {
  std::uint32_t layer = 0;  ///< Added in this step.
  double rho = 0;           ///< With this layer and all before it; 0 when undefined.
};

/// Greedy forward search over all layers: each step adds the layer with which rho is highest (the
/// lowest layer on a tie). Returns every step.
std::vector<mask_step> search_layer_mask(const pair_similarities& signatures,
                                         const rank_correlator& decode, unsigned threads = 0);

/// The layers up to the first maximum of the curve, ascending.
std::vector<std::uint32_t> best_prefix(const std::vector<mask_step>& curve);

}  // namespace eldr::fit
