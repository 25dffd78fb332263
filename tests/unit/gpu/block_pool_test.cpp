#include "gpu/block_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>

namespace {

using eldr::gpu::block_id;
using eldr::gpu::block_pool;
using eldr::gpu::token_id;
using tokens_t = std::vector<token_id>;
using blocks_t = std::vector<block_id>;

std::uint64_t constant_hash(std::uint64_t, std::span<const token_id>) {
  return 42;
}
std::uint64_t one_bit_hash(std::uint64_t, std::span<const token_id> tokens) {
  return tokens.front() & 1;
}

/// The contract in its most naive form: a map from whole prefixes to blocks.
class reference_pool {
 public:
  reference_pool(std::uint32_t blocks, std::uint32_t length) : blocks_(blocks), length_(length) {}

  blocks_t match_and_pin(const tokens_t& tokens) {
    blocks_t hit;
    for (std::size_t end = length_; end < tokens.size(); end += length_) {
      const auto found = published_.find(tokens_t(tokens.begin(), tokens.begin() + end));
      if (found == published_.end()) {
        break;
      }
      hit.push_back(found->second);
      ++blocks_[hit.back()].pins;
    }
    return hit;
  }

  /// Evicts until `count` blocks are free; false if that cannot be.
  bool make_room(std::uint32_t count) {
    if (count > count_if(&reference_pool::is_free) + count_if(&reference_pool::is_cached)) {
      return false;
    }
    while (count_if(&reference_pool::is_free) < count) {
      evict_one();
    }
    return true;
  }
  bool take(block_id id) { return is_free(id) && (blocks_[id].pins = 1) == 1; }

  void publish(const tokens_t& tokens, const blocks_t& blocks) {
    for (std::size_t i = 0; (i + 1) * length_ <= tokens.size(); ++i) {
      const tokens_t prefix(tokens.begin(), tokens.begin() + (i + 1) * length_);
      const auto [entry, added] = published_.emplace(prefix, blocks[i]);
      if (added) {
        blocks_[blocks[i]].published = true;
      } else {
        blocks_[entry->second].last_use = ++uses_;
      }
    }
  }

  void pin(const blocks_t& blocks) {
    for (const block_id id : blocks) {
      ++blocks_[id].pins;
    }
  }
  void unpin(const blocks_t& blocks) {
    for (auto id = blocks.rbegin(); id != blocks.rend(); ++id) {
      if (--blocks_[*id].pins == 0 && blocks_[*id].published) {
        blocks_[*id].last_use = ++uses_;
      }
    }
  }
  void drop_cache() {
    while (count_if(&reference_pool::is_cached) > 0) {
      evict_one();
    }
  }

  void expect_equal(const block_pool& pool) const {
    ASSERT_EQ(pool.free_count(), count_if(&reference_pool::is_free));
    ASSERT_EQ(pool.cached_count(), count_if(&reference_pool::is_cached));
    ASSERT_EQ(pool.free_count() + pool.cached_count() + pool.pinned_count(), blocks_.size());
    ASSERT_EQ(pool.available(), pool.free_count() + pool.cached_count());
    for (block_id id = 0; id < blocks_.size(); ++id) {
      ASSERT_EQ(pool.pins(id), blocks_[id].pins) << "block " << id;
      ASSERT_EQ(pool.published(id), blocks_[id].published) << "block " << id;
    }
  }

 private:
  struct block {
    std::uint32_t pins = 0;
    bool published = false;
    std::uint64_t last_use = 0;
  };

  bool is_free(block_id id) const { return blocks_[id].pins == 0 && !blocks_[id].published; }
  bool is_cached(block_id id) const { return blocks_[id].pins == 0 && blocks_[id].published; }
  std::uint32_t count_if(bool (reference_pool::*what)(block_id) const) const {
    std::uint32_t count = 0;
    for (block_id id = 0; id < blocks_.size(); ++id) {
      count += (this->*what)(id) ? 1 : 0;
    }
    return count;
  }
  static bool starts_with(const tokens_t& text, const tokens_t& prefix) {
    return text.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), text.begin());
  }
  bool has_children(const tokens_t& prefix) const {
    return std::ranges::any_of(published_, [&](const auto& other) {
      return other.first.size() > prefix.size() && starts_with(other.first, prefix);
    });
  }
  void evict_one() {
    std::tuple<bool, std::uint64_t> best{true, std::numeric_limits<std::uint64_t>::max()};
    tokens_t victim;
    for (const auto& [prefix, id] : published_) {
      const std::tuple key{has_children(prefix), blocks_[id].last_use};
      if (is_cached(id) && key < best) {
        best = key;
        victim = prefix;
      }
    }
    std::erase_if(published_, [&](const auto& other) {
      if (!starts_with(other.first, victim)) {
        return false;
      }
      blocks_[other.second].published = false;
      return true;
    });
  }

  std::vector<block> blocks_;
  std::size_t length_;
  std::map<tokens_t, block_id> published_;
  std::uint64_t uses_ = 0;
};

/// Requests with random prompts over a tiny alphabet, driving pool and reference side by side.
class random_requests {
 public:
  random_requests(std::uint64_t seed, eldr::gpu::prefix_hash hash)
      : random_(seed),
        length_(1 + draw(4)),
        count_(1 + draw(24)),
        pool_(count_, length_, hash),
        reference_(count_, length_),
        content_(count_) {}

  void step() {
    switch (draw(9)) {
      case 0:
      case 1:
      case 2:
        begin();
        break;
      case 3:
      case 4:
        publish();
        break;
      case 5:
        share();
        break;
      case 6:
      case 7:
        end(draw(100) < 30);
        break;
      default:
        if (draw(10) == 0) {
          pool_.drop_cache();
          reference_.drop_cache();
        }
    }
    reference_.expect_equal(pool_);
  }

  void finish() {
    while (!requests_.empty()) {
      end(false);
    }
    reference_.expect_equal(pool_);
    ASSERT_EQ(pool_.pinned_count(), 0U);
    pool_.drop_cache();
    ASSERT_EQ(pool_.free_count(), count_);
  }

  std::size_t hits = 0;

 private:
  struct request {
    tokens_t tokens;
    blocks_t blocks;
    blocks_t shares;  ///< Extra pins.
  };

  std::uint32_t draw(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }

  tokens_t prompt() {
    tokens_t tokens;
    if (!history_.empty() && draw(2) == 0) {
      tokens = history_[draw(static_cast<std::uint32_t>(history_.size()))];
      tokens.resize(draw(static_cast<std::uint32_t>(tokens.size()) + 1));
    }
    const std::uint32_t more = 1 + draw(length_ * 6);
    for (std::uint32_t i = 0; i < more; ++i) {
      tokens.push_back(draw(3));
    }
    history_.push_back(tokens);
    return tokens;
  }

  tokens_t prefix(const tokens_t& tokens, std::size_t blocks) const {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(blocks * length_)};
  }

  void begin() {
    request r{prompt(), {}, {}};
    r.blocks = pool_.match_and_pin(r.tokens);
    ASSERT_EQ(r.blocks, reference_.match_and_pin(r.tokens));
    ASSERT_LE(r.blocks.size(), (r.tokens.size() - 1) / length_);
    for (std::size_t i = 0; i < r.blocks.size(); ++i) {
      ASSERT_EQ(content_[r.blocks[i]], prefix(r.tokens, i + 1)) << "a false hit";
    }
    hits += r.blocks.size();
    const auto need =
        static_cast<std::uint32_t>((r.tokens.size() + length_ - 1) / length_ - r.blocks.size());
    const auto fresh = pool_.allocate(need);
    ASSERT_EQ(fresh.has_value(), reference_.make_room(need));
    if (fresh) {
      ASSERT_EQ(fresh->size(), need);
      for (const block_id id : *fresh) {
        ASSERT_TRUE(reference_.take(id)) << "block " << id << " was in use";
        r.blocks.push_back(id);
        // What a step writes: the KV of this block depends on all tokens before it.
        content_[id] = prefix(r.tokens, std::min(r.blocks.size(), r.tokens.size() / length_));
      }
    }
    requests_.push_back(std::move(r));
  }

  void publish() {
    if (requests_.empty()) {
      return;
    }
    const request& r = pick();
    const std::size_t limit = std::min(r.tokens.size(), r.blocks.size() * length_);
    const tokens_t done(r.tokens.begin(),
                        r.tokens.begin() + draw(static_cast<std::uint32_t>(limit) + 1));
    pool_.publish(done, r.blocks);
    reference_.publish(done, r.blocks);
  }

  void share() {
    if (requests_.empty()) {
      return;
    }
    request& r = pick();
    blocks_t some = r.blocks;
    std::shuffle(some.begin(), some.end(), random_);
    some.resize(draw(static_cast<std::uint32_t>(some.size()) + 1));
    pool_.pin(some);
    reference_.pin(some);
    r.shares.insert(r.shares.end(), some.begin(), some.end());
  }

  void end(bool only_shares) {
    if (requests_.empty()) {
      return;
    }
    request& r = pick();
    pool_.unpin(r.shares);
    reference_.unpin(r.shares);
    r.shares.clear();
    if (only_shares) {
      return;
    }
    if (draw(2) == 0) {
      std::shuffle(r.blocks.begin(), r.blocks.end(), random_);
    }
    pool_.unpin(r.blocks);
    reference_.unpin(r.blocks);
    requests_.erase(requests_.begin() + (&r - requests_.data()));
  }

  request& pick() { return requests_[draw(static_cast<std::uint32_t>(requests_.size()))]; }

  std::mt19937_64 random_;
  std::uint32_t length_;
  std::uint32_t count_;
  block_pool pool_;
  reference_pool reference_;
  std::vector<tokens_t> content_;  ///< Of each block: the prefix whose KV it holds.
  std::vector<request> requests_;
  std::vector<tokens_t> history_;
};

struct named_hash {
  const char* name;
  eldr::gpu::prefix_hash hash;
};
void PrintTo(const named_hash& h, std::ostream* out) {
  *out << h.name;
}

class block_pool_property : public testing::TestWithParam<named_hash> {};

TEST_P(block_pool_property, equals_the_reference_under_random_requests) {
  std::size_t hits = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_requests run(seed, GetParam().hash);
    for (int i = 0; i < 120; ++i) {
      run.step();
      if (HasFatalFailure()) {
        return;
      }
    }
    run.finish();
    hits += run.hits;
  }
  EXPECT_GT(hits, 10000U) << "the runs no longer exercise the cache";
}
INSTANTIATE_TEST_SUITE_P(hashes, block_pool_property,
                         testing::Values(named_hash{"good", &eldr::gpu::default_prefix_hash},
                                         named_hash{"constant", &constant_hash},
                                         named_hash{"one_bit", &one_bit_hash}));

tokens_t iota(std::size_t n, token_id first = 0) {
  tokens_t tokens(n);
  for (std::size_t i = 0; i < n; ++i) {
    tokens[i] = first + static_cast<token_id>(i);
  }
  return tokens;
}

blocks_t cache(block_pool& pool, const tokens_t& tokens) {
  const auto blocks = *pool.allocate(static_cast<std::uint32_t>(tokens.size() / 4));
  pool.publish(tokens, blocks);
  pool.unpin(blocks);
  return blocks;
}

TEST(block_pool, a_hit_leaves_the_last_token_to_compute) {
  block_pool pool(8, 4);
  cache(pool, iota(12));
  for (const auto& [tokens, expected] : std::map<std::size_t, std::size_t>{
           {0, 0}, {4, 0}, {5, 1}, {8, 1}, {9, 2}, {12, 2}, {13, 3}, {40, 3}}) {
    const auto hit = pool.match_and_pin(iota(tokens));
    EXPECT_EQ(hit.size(), expected) << tokens << " tokens";
    pool.unpin(hit);
  }
}

TEST(block_pool, evicts_leaves_first_then_by_last_use) {
  block_pool pool(4, 4);
  const auto old = cache(pool, iota(8));
  const auto recent = cache(pool, iota(8, 100));
  EXPECT_EQ(*pool.allocate(1), blocks_t{old[1]});
  EXPECT_EQ(*pool.allocate(1), blocks_t{old[0]});
  EXPECT_EQ(*pool.allocate(1), blocks_t{recent[1]});
  EXPECT_EQ(*pool.allocate(1), blocks_t{recent[0]});
  EXPECT_EQ(pool.allocate(1), std::nullopt);
}

TEST(block_pool, a_match_counts_as_use) {
  block_pool pool(2, 4);
  const auto a = cache(pool, iota(4));
  const auto b = cache(pool, iota(4, 100));
  pool.unpin(pool.match_and_pin(iota(5)));
  EXPECT_EQ(*pool.allocate(1), b);
  EXPECT_EQ(*pool.allocate(1), a);
}

TEST(block_pool, a_block_behind_an_evicted_parent_becomes_private) {
  block_pool pool(3, 4);
  // Two requests compute the same first block; the second one's second block hangs on the first's.
  const auto first = *pool.allocate(1);
  const auto second = *pool.allocate(2);
  pool.publish(iota(4), first);
  pool.publish(iota(8), second);
  EXPECT_FALSE(pool.published(second[0]));
  EXPECT_TRUE(pool.published(second[1]));
  pool.unpin(first);
  EXPECT_EQ(*pool.allocate(1), first);
  EXPECT_FALSE(pool.published(second[1]));
  EXPECT_TRUE(pool.match_and_pin(iota(9)).empty());
  // Publishing again makes the request's own copy the shared one.
  pool.publish(iota(8), second);
  EXPECT_EQ(pool.match_and_pin(iota(9)), second);
}

TEST(block_pool, refuses_what_it_cannot_allocate_and_changes_nothing) {
  block_pool pool(4, 4);
  cache(pool, iota(8));
  const auto held = *pool.allocate(1);
  EXPECT_EQ(pool.allocate(4), std::nullopt);
  EXPECT_EQ(pool.allocate(0xFFFF'FFFF), std::nullopt);
  EXPECT_EQ(pool.cached_count(), 2U);
  EXPECT_EQ(pool.free_count(), 1U);
  EXPECT_EQ(pool.allocate(0)->size(), 0U);
}

TEST(block_pool, misuse_is_an_error) {
  EXPECT_THROW(block_pool(0, 4), std::runtime_error);
  EXPECT_THROW(block_pool(4, 0), std::runtime_error);
  block_pool pool(4, 4);
  const auto held = *pool.allocate(2);
  const block_id free = 4 + 1 - 2;
  EXPECT_THROW(pool.pin(blocks_t{99}), std::runtime_error);
  EXPECT_THROW(pool.pin(blocks_t{free}), std::runtime_error);
  EXPECT_THROW(pool.unpin(blocks_t{99}), std::runtime_error);
  EXPECT_THROW(pool.unpin(blocks_t{free}), std::runtime_error);
  EXPECT_THROW(pool.publish(iota(12), held), std::runtime_error);
  EXPECT_THROW(pool.publish(iota(4), blocks_t{free}), std::runtime_error);
  EXPECT_THROW(pool.publish(tokens_t{1, 1, 1, 1, 1, 1, 1, 1}, blocks_t{held[0], held[0]}),
               std::runtime_error);
  EXPECT_EQ(pool.pins(99), 0U);
  EXPECT_FALSE(pool.published(99));
  EXPECT_EQ(pool.pinned_count(), 2U);
}

}  // namespace
