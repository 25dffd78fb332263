#include "actors/router/prefill_ring.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

namespace eldr::actors {

namespace {
constexpr std::size_t virtual_nodes = 160;
constexpr std::size_t prefix_tokens = 256;
constexpr double load_bound = 1.25;
}  // namespace

std::uint64_t prefix_hash(std::span<const std::uint32_t> tokens) {
  const auto head = tokens.first(std::min(tokens.size(), prefix_tokens));
  return XXH3_64bits(head.data(), head.size_bytes());
}

const std::vector<std::uint64_t>& prefill_ring::points_of(const std::string& node) {
  auto [entry, fresh] = points_.try_emplace(node);
  if (fresh) {
    for (std::size_t i = 0; i < virtual_nodes; ++i) {
      const auto label = node + "#" + std::to_string(i);
      entry->second.push_back(XXH3_64bits(label.data(), label.size()));
    }
    std::sort(entry->second.begin(), entry->second.end());
  }
  return entry->second;
}

std::size_t prefill_ring::choose(std::uint64_t hash,
                                 std::span<const prefill_candidate> candidates) {
  std::size_t nearest = 0;
  std::size_t least = 0;
  std::uint64_t nearest_distance = ~std::uint64_t{0};
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const auto& points = points_of(candidates[i].node);
    const auto next = std::lower_bound(points.begin(), points.end(), hash);
    // Unsigned arithmetic wraps, as the ring does.
    const auto distance = (next == points.end() ? points.front() : *next) - hash;
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = i;
    }
    if (candidates[i].depth < candidates[least].depth) {
      least = i;
    }
    sum += candidates[i].depth;
  }
  const auto bound =
      std::ceil(load_bound * static_cast<double>(sum + 1) / static_cast<double>(candidates.size()));
  return candidates[nearest].depth + 1 <= bound ? nearest : least;
}

}  // namespace eldr::actors
