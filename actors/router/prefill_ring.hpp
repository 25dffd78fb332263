#pragma once
/// Which prefill worker gets a prompt: consistent hashing of its beginning, so that equal prefixes
/// meet their cached blocks, with bounded load. Pure.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace eldr::actors {

struct prefill_candidate {
  std::string node;
  std::uint32_t depth = 0;
};

/// Hash of the first 256 token ids (1,024 bytes).
std::uint64_t prefix_hash(std::span<const std::uint32_t> tokens);

/// A consistent ring with 160 virtual nodes per worker. The worker at the hash is taken while its
/// load, this request included, is at most 1.25 x (sum + 1) / n rounded up; else the least loaded
/// (ties by name).
class prefill_ring {
 public:
  /// Index into `candidates`, which are ordered by name and not empty.
  std::size_t choose(std::uint64_t hash, std::span<const prefill_candidate> candidates);

 private:
  const std::vector<std::uint64_t>& points_of(const std::string& node);

  std::map<std::string, std::vector<std::uint64_t>> points_;  ///< Sorted, per node seen so far.
};

}  // namespace eldr::actors
