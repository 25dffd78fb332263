#include "messages/get_plan.hpp"

#include <algorithm>

namespace eldr::messages {

bool within(const std::vector<get_range>& ranges, std::uint64_t region_bytes) noexcept {
  return std::ranges::all_of(ranges, [&](const get_range& range) {
    return range.length <= region_bytes && range.remote_offset <= region_bytes - range.length;
  });
}

std::vector<get_range> plan_get(const std::vector<get_range>& ranges, std::size_t piece_bytes_max) {
  std::vector<get_range> merged;
  for (const auto& range : ranges) {
    if (range.length == 0) {
      continue;
    }
    if (!merged.empty() &&
        merged.back().remote_offset + merged.back().length == range.remote_offset &&
        merged.back().local + merged.back().length == range.local) {
      merged.back().length += range.length;
    } else {
      merged.push_back(range);
    }
  }
  std::vector<get_range> pieces;
  for (auto rest : merged) {
    while (rest.length > 0) {
      const auto length = std::min(rest.length, piece_bytes_max);
      pieces.push_back({rest.remote_offset, rest.local, length});
      rest = {rest.remote_offset + length, rest.local + length, rest.length - length};
    }
  }
  return pieces;
}

}  // namespace eldr::messages
