#pragma once
/// Bookkeeping of KV blocks: who holds which, which are free, and which hold a prefix worth
/// keeping. Pure: it touches no KV memory.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::gpu {

/// Hash of a block of tokens that follows a prefix of hash `parent` (0: no prefix). Collisions cost
/// time, never a false hit.
using prefix_hash = std::uint64_t (*)(std::uint64_t parent, std::span<const token_id> tokens);
std::uint64_t default_prefix_hash(std::uint64_t parent, std::span<const token_id> tokens);

/// Allocator with prefix cache. A block is in one of three states: free, cached (published, no
/// pins, evictable in order of last use) or pinned (pin count > 0; published or private).
/// Single-threaded; all operations are deterministic. Misuse (an id outside the pool, a pin on a
/// free block, an unpin without a pin, a block published twice as different prefixes) throws
/// std::runtime_error.
class block_pool {
 public:
  /// Throws std::runtime_error if a count is 0.
  block_pool(std::uint32_t block_count, std::uint32_t block_tokens,
             prefix_hash hash = &default_prefix_hash);
  ~block_pool();
  block_pool(block_pool&&) noexcept;
  block_pool& operator=(block_pool&&) noexcept;

  /// Longest cached prefix of `tokens` in whole blocks, at most floor((n-1)/B) of them. Chained by
  /// hash and verified by parent and token ids. Each returned block is pinned once.
  std::vector<block_id> match_and_pin(std::span<const token_id> tokens);

  /// `count` private blocks, pinned once each, evicting cached ones (least recently used, leaves
  /// before their parents) as needed. None, and nothing changed, if there are not enough. When only
  /// parents of pinned blocks are left to evict, their children become private.
  std::optional<std::vector<block_id>> allocate(std::uint32_t count);

  /// Makes the full blocks of `tokens` (the first n/B of `blocks`) available to match. All layers
  /// of them must have been written. A block whose prefix is already published by another block
  /// stays private; what follows it is published behind the other. Partial last blocks are never
  /// published. `blocks` must be pinned; it may be longer than n/B.
  void publish(std::span<const token_id> tokens, std::span<const block_id> blocks);

  void pin(std::span<const block_id> blocks);
  /// Undoes one pin each. A private block with no pin left becomes free, a published one cached.
  void unpin(std::span<const block_id> blocks);

  /// Forgets all cached blocks. Pinned blocks that are published behind one become private.
  void drop_cache();

  std::uint32_t block_count() const noexcept;
  std::uint32_t block_tokens() const noexcept;
  std::uint32_t free_count() const noexcept;
  std::uint32_t cached_count() const noexcept;
  std::uint32_t pinned_count() const noexcept;
  /// Blocks that allocate() could hand out now: free + cached.
  std::uint32_t available() const noexcept { return free_count() + cached_count(); }
  std::uint32_t pins(block_id) const noexcept;
  bool published(block_id) const noexcept;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace eldr::gpu
