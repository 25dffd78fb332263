#pragma once
/// SHA-256 (FIPS 180-4), for the digest of the cluster's token. Not for bulk data.

#include <array>
#include <cstddef>
#include <span>

namespace eldr::messages {

using digest = std::array<std::byte, 32>;

digest sha256(std::span<const std::byte> data);

/// Compares without telling by its duration where the two differ.
bool equal_in_constant_time(const digest& a, const digest& b) noexcept;

}  // namespace eldr::messages
