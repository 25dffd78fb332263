#include "gpu/block_pool.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace eldr::gpu {

std::uint64_t default_prefix_hash(std::uint64_t parent, std::span<const token_id> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent);
}

namespace {

constexpr block_id none = 0xFFFF'FFFF;

struct block {
  std::uint32_t pins = 0;
  bool published = false;
  // The rest is meaningful while published only. A parent is never unpublished before its
  // children, so an id is enough to name it.
  block_id parent = none;
  block_id first_child = none;  ///< Children are a doubly linked list through their siblings.
  block_id next_sibling = none;
  block_id previous_sibling = none;
  block_id next_in_bucket = none;
  std::uint64_t hash = 0;
  std::uint64_t last_use = 0;
};

/// Orders cached blocks by who goes first: leaves, then least recent use.
struct eviction_key {
  bool has_children;
  std::uint64_t last_use;
  block_id id;
  auto operator<=>(const eviction_key&) const = default;
};

}  // namespace

struct block_pool::impl {
  impl(std::uint32_t block_count, std::uint32_t block_tokens, prefix_hash hash_function)
      : tokens_per_block(block_tokens), hash_of(hash_function) {
    if (block_count == 0 || block_tokens == 0) {
      throw std::runtime_error("A KV pool needs at least one block of at least one token.");
    }
    blocks.resize(block_count);
    tokens.resize(std::size_t{block_count} * block_tokens);
    buckets.assign(std::bit_ceil(std::size_t{block_count} * 2), none);
    free.resize(block_count);
    for (std::uint32_t i = 0; i < block_count; ++i) {
      free[i] = block_count - 1 - i;
    }
  }

  block& at(block_id id) {
    if (id >= blocks.size()) {
      throw std::runtime_error("KV block " + std::to_string(id) + " is not in the pool of " +
                               std::to_string(blocks.size()) + " blocks.");
    }
    return blocks[id];
  }

  std::span<token_id> tokens_of(block_id id) {
    return {tokens.data() + std::size_t{id} * tokens_per_block, tokens_per_block};
  }

  block_id& bucket_of(std::uint64_t hash) { return buckets[hash & (buckets.size() - 1)]; }

  std::uint64_t chain_hash(block_id parent, std::span<const token_id> text) const {
    return hash_of(parent == none ? 0 : blocks[parent].hash, text);
  }

  bool cached(const block& b) const { return b.published && b.pins == 0; }

  eviction_key key_of(block_id id) const {
    return {blocks[id].first_child != none, blocks[id].last_use, id};
  }

  /// Applies a change to what key_of(id) is made of.
  template <typename Change>
  void rekey(block_id id, Change change) {
    if (!cached(blocks[id])) {
      change();
      return;
    }
    auto node = evictable.extract(key_of(id));
    change();
    node.value() = key_of(id);
    evictable.insert(std::move(node));
  }

  block_id find(block_id parent, std::uint64_t hash, std::span<const token_id> text) {
    for (block_id id = bucket_of(hash); id != none; id = blocks[id].next_in_bucket) {
      if (blocks[id].parent == parent && std::ranges::equal(tokens_of(id), text)) {
        return id;
      }
    }
    return none;
  }

  void link(block_id id, block_id parent, std::uint64_t hash, std::span<const token_id> text) {
    block& b = blocks[id];
    std::ranges::copy(text, tokens_of(id).begin());
    b.published = true;
    b.hash = hash;
    b.next_in_bucket = std::exchange(bucket_of(hash), id);
    b.parent = parent;
    b.first_child = b.previous_sibling = b.next_sibling = none;
    if (parent == none) {
      return;
    }
    rekey(parent, [&] {
      b.next_sibling = std::exchange(blocks[parent].first_child, id);
      if (b.next_sibling != none) {
        blocks[b.next_sibling].previous_sibling = id;
      }
    });
  }

  void unlink_from_parent(const block& b) {
    if (b.next_sibling != none) {
      blocks[b.next_sibling].previous_sibling = b.previous_sibling;
    }
    if (b.previous_sibling != none) {
      blocks[b.previous_sibling].next_sibling = b.next_sibling;
    } else if (b.parent != none) {
      rekey(b.parent, [&] { blocks[b.parent].first_child = b.next_sibling; });
    }
  }

  void unlink_from_bucket(block_id id) {
    block_id* link = &bucket_of(blocks[id].hash);
    while (*link != id) {
      link = &blocks[*link].next_in_bucket;
    }
    *link = blocks[id].next_in_bucket;
  }

  /// Takes a block and all that is published behind it out of the cache, deepest first: a child
  /// whose parent is gone could never be matched, or worse, be matched behind the parent id's next
  /// owner. Iterative, since chains are as long as contexts.
  void unpublish(block_id root) {
    block_id id = root;
    while (true) {
      while (blocks[id].first_child != none) {
        id = blocks[id].first_child;
      }
      block& b = blocks[id];
      if (b.pins == 0) {
        evictable.erase(key_of(id));
        free.push_back(id);
      }
      b.published = false;
      unlink_from_bucket(id);
      unlink_from_parent(b);
      if (id == root) {
        return;
      }
      id = b.parent;
    }
  }

  void add_pin(block_id id) {
    block& b = blocks[id];
    if (cached(b)) {
      evictable.erase(key_of(id));
    }
    ++b.pins;
  }

  void remove_pin(block_id id) {
    block& b = at(id);
    if (b.pins == 0) {
      throw std::runtime_error("KV block " + std::to_string(id) + " was unpinned without a pin.");
    }
    if (--b.pins > 0) {
      return;
    }
    if (b.published) {
      b.last_use = ++uses;
      evictable.insert(key_of(id));
    } else {
      free.push_back(id);
    }
  }

  void require_held(block_id id) {
    const block& b = at(id);
    if (b.pins == 0 && !b.published) {
      throw std::runtime_error("KV block " + std::to_string(id) + " is free and cannot be used.");
    }
  }

  const std::uint32_t tokens_per_block;
  const prefix_hash hash_of;
  std::uint64_t uses = 0;
  std::vector<block> blocks;
  std::vector<token_id> tokens;   ///< [block][token], of published blocks.
  std::vector<block_id> buckets;  ///< Heads of the hash chains; a power of two.
  std::vector<block_id> free;     ///< Stack.
  /// A tree, since parents rejoin the order at their own last use once their children are gone.
  /// It changes once per block and request, not in an engine step.
  std::set<eviction_key> evictable;
};

block_pool::block_pool(std::uint32_t block_count, std::uint32_t block_tokens, prefix_hash hash)
    : impl_(std::make_unique<impl>(block_count, block_tokens, hash)) {}
block_pool::~block_pool() = default;
block_pool::block_pool(block_pool&&) noexcept = default;
block_pool& block_pool::operator=(block_pool&&) noexcept = default;

std::vector<block_id> block_pool::match_and_pin(std::span<const token_id> tokens) {
  std::vector<block_id> hit;
  if (tokens.empty()) {
    return hit;
  }
  const std::size_t length = impl_->tokens_per_block;
  // The last token is always computed: its logits are needed.
  const std::size_t hit_max = (tokens.size() - 1) / length;
  block_id parent = none;
  for (std::size_t i = 0; i < hit_max; ++i) {
    const auto text = tokens.subspan(i * length, length);
    parent = impl_->find(parent, impl_->chain_hash(parent, text), text);
    if (parent == none) {
      break;
    }
    impl_->add_pin(parent);
    hit.push_back(parent);
  }
  return hit;
}

std::optional<std::vector<block_id>> block_pool::allocate(std::uint32_t count) {
  if (count > available()) {
    return std::nullopt;
  }
  std::vector<block_id> result;
  result.reserve(count);
  while (result.size() < count) {
    if (impl_->free.empty()) {
      impl_->unpublish(impl_->evictable.begin()->id);
    }
    result.push_back(impl_->free.back());
    impl_->free.pop_back();
    impl_->blocks[result.back()].pins = 1;
  }
  return result;
}

void block_pool::publish(std::span<const token_id> tokens, std::span<const block_id> blocks) {
  const std::size_t length = impl_->tokens_per_block;
  const std::size_t full = tokens.size() / length;
  if (blocks.size() < full) {
    throw std::runtime_error("Publishing " + std::to_string(tokens.size()) + " tokens takes " +
                             std::to_string(full) + " KV blocks, but " +
                             std::to_string(blocks.size()) + " were given.");
  }
  block_id parent = none;
  for (std::size_t i = 0; i < full; ++i) {
    const block_id id = blocks[i];
    if (impl_->at(id).pins == 0) {
      throw std::runtime_error("KV block " + std::to_string(id) + " was published without a pin.");
    }
    const auto text = tokens.subspan(i * length, length);
    const std::uint64_t hash = impl_->chain_hash(parent, text);
    const block_id existing = impl_->find(parent, hash, text);
    if (existing != none) {
      impl_->rekey(existing, [&] { impl_->blocks[existing].last_use = ++impl_->uses; });
      parent = existing;
      continue;
    }
    if (impl_->blocks[id].published) {
      throw std::runtime_error("KV block " + std::to_string(id) +
                               " is already published with another prefix.");
    }
    impl_->link(id, parent, hash, text);
    parent = id;
  }
}

void block_pool::pin(std::span<const block_id> blocks) {
  for (const block_id id : blocks) {
    impl_->require_held(id);
  }
  for (const block_id id : blocks) {
    impl_->add_pin(id);
  }
}

void block_pool::unpin(std::span<const block_id> blocks) {
  // Last first, so that a prefix counts as used later than what follows it.
  for (std::size_t i = blocks.size(); i-- > 0;) {
    impl_->remove_pin(blocks[i]);
  }
}

void block_pool::drop_cache() {
  while (!impl_->evictable.empty()) {
    impl_->unpublish(impl_->evictable.begin()->id);
  }
}

std::uint32_t block_pool::block_count() const noexcept {
  return static_cast<std::uint32_t>(impl_->blocks.size());
}
std::uint32_t block_pool::block_tokens() const noexcept {
  return impl_->tokens_per_block;
}
std::uint32_t block_pool::free_count() const noexcept {
  return static_cast<std::uint32_t>(impl_->free.size());
}
std::uint32_t block_pool::cached_count() const noexcept {
  return static_cast<std::uint32_t>(impl_->evictable.size());
}
std::uint32_t block_pool::pinned_count() const noexcept {
  return block_count() - free_count() - cached_count();
}
std::uint32_t block_pool::pins(block_id id) const noexcept {
  return id < impl_->blocks.size() ? impl_->blocks[id].pins : 0;
}
bool block_pool::published(block_id id) const noexcept {
  return id < impl_->blocks.size() && impl_->blocks[id].published;
}

}  // namespace eldr::gpu
