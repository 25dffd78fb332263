#pragma once
/// Draws a token from a row of logits.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/engine.hpp"
#include "gpu/geometry.hpp"

namespace eldr::gpu {

/// Empty, or one sentence that says which parameter is out of range.
std::string sampling_error(const sampling& how);

/// The same logits, parameters and index give the same token, on any machine.
///
/// Tokens are ranked by logit, descending, then by id. Temperature 0 takes the first. Otherwise:
/// top_k keeps the first k; each token kept has weight w = exp((logit - max) / temperature), their
/// total being summed by ascending id; top_p keeps the first tokens whose running sum of w, by
/// rank, reaches top_p * total, the one that reaches it included; and the token is the first whose
/// running sum exceeds u * (sum kept), with u = philox_uniform(seed, index). All in double.
class sampler {
 public:
  /// `index` is the position that the token will have. Throws std::runtime_error if a parameter is
  /// out of range, there are no logits, one is NaN or +infinity, or all are -infinity.
  token_id sample(std::span<const float> logits, const sampling& how, std::uint64_t index);

 private:
  token_id draw(std::span<const float> logits, float max, const sampling& how, std::uint64_t index);

  std::vector<std::uint64_t> keys_;  ///< Scratch; kept so that a step allocates nothing.
};

}  // namespace eldr::gpu
