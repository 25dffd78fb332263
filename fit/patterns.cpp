#include "fit/patterns.hpp"

#include <algorithm>
#include <cmath>

namespace eldr::fit {

std::vector<float> mean_decode_pattern(const trace_counts& counts,
                                       std::span<const std::uint32_t> which) {
  std::vector<double> sums(counts.cells(), 0);
  std::size_t used = 0;
  for (const std::uint32_t request : which) {
    if (counts.decode_tokens[request] == 0) {
      continue;
    }
    ++used;
    const double scale = 1.0 / counts.decode_tokens[request];
    const auto cells = counts.decode_of(request);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      sums[i] += cells[i] * scale;
    }
  }
  std::vector<float> pattern(used == 0 ? 0 : sums.size());
  std::ranges::transform(
      sums.begin(), sums.begin() + std::ssize(pattern), pattern.begin(),
      [used](double sum) { return static_cast<float>(sum / static_cast<double>(used)); });
  return pattern;
}

double expected_union(std::span<const float> one, std::span<const float> others,
                      std::uint32_t layers, std::uint32_t batch) {
  double total = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    // Means of shares can exceed 1 by rounding.
    const double absent = std::max(0.0, 1.0 - others[i]);
    total += 1 - std::max(0.0, 1.0 - one[i]) * std::pow(absent, batch - 1.0);
  }
  return total / layers;
}

}  // namespace eldr::fit
