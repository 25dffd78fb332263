#include "actors/router/prefill_ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace eldr::actors {
namespace {

std::vector<prefill_candidate> nodes(std::size_t n) {
  std::vector<prefill_candidate> out;
  for (std::size_t i = 0; i < n; ++i) {
    out.push_back({"prefill-" + std::to_string(10 + i), 0});
  }
  return out;
}

/// All load equal and high: the bound leaves the choice to the hash alone.
std::vector<prefill_candidate> busy_nodes(std::size_t n) {
  auto out = nodes(n);
  for (auto& c : out) {
    c.depth = 1000;
  }
  return out;
}

TEST(prefix_hash, sees_the_first_256_tokens_and_no_more) {
  std::vector<std::uint32_t> tokens(300, 5);
  const auto hash = prefix_hash(tokens);
  tokens[299] = 6;
  tokens[256] = 6;
  EXPECT_EQ(prefix_hash(tokens), hash);
  tokens[255] = 6;
  EXPECT_NE(prefix_hash(tokens), hash);
  EXPECT_NE(prefix_hash(std::vector<std::uint32_t>{1, 2}),
            prefix_hash(std::vector<std::uint32_t>{2, 1}));
}

TEST(prefill_ring, equal_prompts_meet_on_any_router) {
  prefill_ring here;
  prefill_ring there;
  const auto candidates = busy_nodes(5);
  std::mt19937_64 rng(1);
  there.choose(rng(), busy_nodes(9));  // What it saw before does not matter.
  for (int i = 0; i < 1000; ++i) {
    const auto hash = rng();
    ASSERT_EQ(here.choose(hash, candidates), there.choose(hash, candidates));
  }
}

TEST(prefill_ring, spreads_prompts_over_the_workers) {
  prefill_ring ring;
  constexpr std::size_t n = 8;
  const auto candidates = busy_nodes(n);
  std::vector<int> hits(n, 0);
  std::mt19937_64 rng(2);
  constexpr int prompts = 16'000;
  for (int i = 0; i < prompts; ++i) {
    ++hits[ring.choose(rng(), candidates)];
  }
  for (auto h : hits) {
    EXPECT_GT(h, prompts / n / 2);
    EXPECT_LT(h, prompts / n * 3 / 2);
  }
}

TEST(prefill_ring, moves_only_the_prompts_of_the_worker_that_left) {
  prefill_ring ring;
  constexpr std::size_t n = 6;
  const auto all = busy_nodes(n);
  auto rest = all;
  constexpr std::size_t gone = 2;
  rest.erase(rest.begin() + gone);
  std::mt19937_64 rng(3);
  int moved = 0;
  constexpr int prompts = 12'000;
  for (int i = 0; i < prompts; ++i) {
    const auto hash = rng();
    const auto before = ring.choose(hash, all);
    const auto after = ring.choose(hash, rest);
    if (before == gone) {
      ++moved;
    } else {
      ASSERT_EQ(all[before].node, rest[after].node);
    }
  }
  EXPECT_NEAR(moved, prompts / static_cast<int>(n), prompts / static_cast<int>(n) / 2);
}

TEST(prefill_ring, wraps_around_its_end) {
  prefill_ring ring;
  const auto candidates = busy_nodes(4);
  // No virtual node lies in the last 2^48 hashes (for these names), so that they belong to the
  // first one of the ring, as hash 0 does.
  const auto first = ring.choose(0, candidates);
  EXPECT_EQ(ring.choose(~std::uint64_t{0}, candidates), first);
  EXPECT_EQ(ring.choose(~std::uint64_t{0} - (std::uint64_t{1} << 48), candidates), first);
}

TEST(prefill_ring, a_single_worker_gets_everything) {
  prefill_ring ring;
  auto one = nodes(1);
  one[0].depth = 12'345;
  EXPECT_EQ(ring.choose(77, one), 0U);
}

TEST(prefill_ring, turns_to_the_least_loaded_past_the_bound) {
  prefill_ring ring;
  auto c = nodes(3);
  const auto home = ring.choose(42, c);
  ASSERT_EQ(c[home].depth, 0U) << "an idle cluster lets every prompt go home";
  c[home].depth = 9;
  const auto other = ring.choose(42, c);
  EXPECT_NE(other, home);
  EXPECT_EQ(other, home == 0 ? 1U : 0U) << "ties go to the lower name";
}

/// Placing m requests on n workers leaves none with more than ceil(1.25 m / n), and a prompt
/// leaves its home for the bound alone.
TEST(prefill_ring, honours_its_load_bound) {
  for (std::size_t n : {2, 3, 5, 8}) {
    prefill_ring ring;
    auto c = nodes(n);
    std::mt19937_64 rng(n);
    const auto hot = rng();
    for (std::uint64_t m = 1; m <= 400; ++m) {
      const auto hash = rng() % 3 == 0 ? rng() : hot;
      const auto cap = (5 * m + 4 * n - 1) / (4 * n);  // ceil(1.25 m / n) in integers
      const auto home = ring.choose(hash, busy_nodes(n));
      const auto least = static_cast<std::size_t>(
          std::min_element(c.begin(), c.end(),
                           [](const auto& a, const auto& b) { return a.depth < b.depth; }) -
          c.begin());
      const auto chosen = ring.choose(hash, c);
      ASSERT_EQ(chosen, c[home].depth + 1 <= cap ? home : least) << n << " workers, request " << m;
      ++c[chosen].depth;
      ASSERT_LE(c[chosen].depth, cap) << n << " workers, request " << m;
    }
  }
}

}  // namespace
}  // namespace eldr::actors
