#pragma once
/// Similarity of a signature with each candidate's slots.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "actors/router/routing_policy.hpp"
#include "fit/transform.hpp"

namespace eldr::actors {

class slot_similarity {
 public:
  slot_similarity(const fit::artifact& artifact, fit::centroid_set centroids,
                  std::uint32_t decode_nodes)
      : scorer_(artifact, centroids),
        decode_nodes_(std::max(decode_nodes, 1u)),
        similarities_(scorer_.slots()) {}

  /// False if the signature is missing or of the wrong size (`zero_norm` false) or has no
  /// direction.
  bool score(std::span<const std::byte> signature, bool& zero_norm) {
    zero_norm = false;
    if (signature.size() != scorer_.wire_bytes()) {
      return false;
    }
    zero_norm = !scorer_.score(signature, similarities_);
    return !zero_norm;
  }

  /// Highest similarity of the slots that the keeper of `slot` holds: slot, slot + N, ... below K.
  /// NaN for a spare: its slot is none of the artifact's.
  float of(std::int32_t slot) const {
    auto best = std::numeric_limits<float>::quiet_NaN();
    for (auto s = static_cast<std::uint32_t>(slot); slot >= 0 && s < similarities_.size();
         s += decode_nodes_) {
      best = best == best ? std::max(best, similarities_[s]) : similarities_[s];
    }
    return best;
  }
  /// The slot nearest to the signature, held by anybody or nobody.
  std::uint32_t nearest() const {
    return static_cast<std::uint32_t>(std::max_element(similarities_.begin(), similarities_.end()) -
                                      similarities_.begin());
  }

 private:
  fit::slot_scorer scorer_;
  std::uint32_t decode_nodes_;
  std::vector<float> similarities_;
};

}  // namespace eldr::actors
