#pragma once
/// How a one-sided read is cut into requests. Pure.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "messages/transport.hpp"

namespace eldr::messages {

/// True if every range lies within a region of `region_bytes`.
bool within(const std::vector<get_range>& ranges, std::uint64_t region_bytes) noexcept;

/// The same bytes in fewer, larger requests: neighbours on both sides are merged, what exceeds
/// `piece_bytes_max` is cut so that several pieces are in flight, and empty ranges go.
std::vector<get_range> plan_get(const std::vector<get_range>& ranges, std::size_t piece_bytes_max);

}  // namespace eldr::messages
