#pragma once
/// How a decode worker is chosen. Pure; every policy is deterministic in its seed and its inputs.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/common/ids.hpp"

namespace eldr::actors {

/// A decode worker that may take the request.
struct decode_candidate {
  std::string_view node;
  std::int32_t slot = -1;       ///< Centroid slot; -1: none.
  std::uint32_t in_flight = 0;  ///< Requests there, those on their way included.
  std::uint32_t blocks_free = 0;
};

/// What is known of the request.
struct routing_request {
  attempt_key key;
  /// Block sums [layers][experts], uint16 little-endian, as they came; empty: no signature.
  std::span<const std::byte> signature;
  std::uint32_t tokens = 0;
  std::string_view label;
};

class routing_policy {
 public:
  virtual ~routing_policy() = default;
  virtual std::string_view name() const noexcept = 0;
  /// Index into `candidates`, which are not empty and ordered by node name.
  virtual std::size_t choose(const routing_request&, std::span<const decode_candidate>) = 0;
};

/// Names that make_policy knows.
std::span<const std::string_view> policy_names();

/// Throws std::invalid_argument, naming the known policies.
std::unique_ptr<routing_policy> make_policy(std::string_view name, std::uint64_t seed);

}  // namespace eldr::actors
