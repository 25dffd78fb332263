#pragma once
/// Gating: which experts a token goes to.

#include <cstdint>
#include <span>

namespace eldr::gpu {

/// Writes the ids of the `best.size()` largest scores to `best`, largest first, equal ones by lower
/// id. NaN counts as smaller than everything. best.size() <= scores.size() <= 65536.
inline void top_k(std::span<const float> scores, std::span<std::uint16_t> best) {
  const auto above = [&](float a, float b) { return a > b || (b != b && a == a); };
  std::size_t filled = 0;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    if (filled == best.size() && !above(scores[e], scores[best[filled - 1]])) {
      continue;
    }
    std::size_t at = filled < best.size() ? filled++ : filled - 1;
    for (; at > 0 && above(scores[e], scores[best[at - 1]]); --at) {
      best[at] = best[at - 1];
    }
    best[at] = static_cast<std::uint16_t>(e);
  }
}

}  // namespace eldr::gpu
