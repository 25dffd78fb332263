/// The union policy: its arithmetic against plain formulas, exact bookkeeping, and its choices.

#include "actors/router/union_policy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "actors/router/step_time_model.hpp"
#include "actors/router/union_kernels.hpp"

namespace eldr::actors {
namespace {

std::vector<std::byte> wire(const std::vector<std::uint16_t>& counts) {
  std::vector<std::byte> bytes(counts.size() * 2);
  std::memcpy(bytes.data(), counts.data(), bytes.size());
  return bytes;
}

std::vector<std::uint16_t> random_counts(std::mt19937_64& rng, std::size_t cells,
                                         std::uint32_t tokens) {
  std::vector<std::uint16_t> counts(cells);
  for (auto& c : counts) {
    c = static_cast<std::uint16_t>(rng() % (tokens + 1));
  }
  return counts;
}

TEST(union_kernels, agree_with_the_formulas) {
  std::mt19937_64 rng(4);
  for (const std::size_t cells : {1u, 7u, 8u, 9u, 64u, 333u}) {
    const auto counts = random_counts(rng, cells, 100);
    std::vector<float> mean(cells, 0.25F);
    std::vector<float> p(cells);
    union_kernels::blend(wire(counts), 100, 0.7F, mean, p);
    std::vector<std::int32_t> increment(cells);
    union_kernels::increments(p, increment);
    std::vector<std::int64_t> sum(cells);
    std::vector<float> free(cells, 1);
    const auto expected = union_kernels::apply(increment, +1, sum, free);
    double distinct = 0;
    double growth = 0;
    for (std::size_t i = 0; i < cells; ++i) {
      const double want = std::clamp(counts[i] / 100.0 * 0.7 + 0.3 * 0.25, 1e-4, 0.98);
      EXPECT_NEAR(p[i], want, 1e-6);
      EXPECT_NEAR(increment[i], -65536 * std::log(1 - want), 1.0 + 65536 * 1e-5);
      EXPECT_NEAR(free[i], 1 - want, 2e-5);
      distinct += 1 - free[i];
      growth += p[i] * free[i];
    }
    EXPECT_NEAR(expected, distinct, 1e-3);
    EXPECT_NEAR(union_kernels::growth(p, free), growth, 1e-3);
  }
}

TEST(union_kernels, undo_exactly_in_any_order) {
  std::mt19937_64 rng(5);
  constexpr std::size_t cells = 96;
  std::vector<std::int64_t> sum(cells);
  std::vector<float> free(cells, 1);
  std::vector<std::vector<std::int32_t>> placed;
  for (int i = 0; i < 200; ++i) {
    std::vector<float> p(cells);
    for (auto& v : p) {
      v = 1e-4F + 0.97F * static_cast<float>(rng() % 1000) / 1000.0F;
    }
    placed.emplace_back(cells);
    union_kernels::increments(p, placed.back());
    union_kernels::apply(placed.back(), +1, sum, free);
  }
  std::shuffle(placed.begin(), placed.end(), rng);
  float expected = 1;
  for (const auto& increment : placed) {
    expected = union_kernels::apply(increment, -1, sum, free);
  }
  EXPECT_EQ(expected, 0);
  EXPECT_EQ(sum, std::vector<std::int64_t>(cells));
  EXPECT_EQ(free, std::vector<float>(cells, 1));
}

policy_options options() {
  policy_options o;
  o.layers = 2;
  o.experts = 8;
  o.experts_per_token = 2;
  o.decode_nodes = 2;
  return o;
}

/// A prompt of 64 tokens that uses two experts in each layer.
std::vector<std::byte> prompt_on(std::uint32_t first) {
  std::vector<std::uint16_t> counts(16);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    counts[layer * 8 + first] = 64;
    counts[layer * 8 + first + 1] = 64;
  }
  return wire(counts);
}

std::size_t place(routing_policy& policy, std::uint64_t id, const std::vector<std::byte>& signature,
                  const std::vector<std::uint32_t>& loads) {
  const std::vector<decode_candidate> candidates{{"a", 0, loads[0], 100}, {"b", 1, loads[1], 100}};
  routing_request request;
  request.key = {{1, id}, 1};
  request.signature = signature;
  request.tokens = 64;
  decision why;
  const auto chosen = policy.choose(request, candidates, why);
  policy.placed(request.key, candidates[chosen].node);
  return chosen;
}

TEST(union_policy, brings_requests_with_the_same_experts_together) {
  const auto policy = make_union_policy("union", options());
  EXPECT_EQ(place(*policy, 1, prompt_on(0), {0, 0}), 0u);
  EXPECT_EQ(place(*policy, 2, prompt_on(4), {1, 0}), 1u);
  EXPECT_EQ(place(*policy, 3, prompt_on(0), {1, 1}), 0u);
  EXPECT_EQ(place(*policy, 4, prompt_on(4), {2, 2}), 1u);
}

TEST(union_policy, forgets_what_ended_or_was_lost) {
  const auto fresh = make_union_policy("union", options());
  const auto used = make_union_policy("union", options());
  std::vector<std::uint32_t> load{0, 0};
  for (std::uint64_t id = 1; id <= 40; ++id) {
    place(*used, id, prompt_on(id % 6), load);
  }
  for (std::uint64_t id = 1; id <= 20; ++id) {
    used->ended({{1, id}, 1}, "a");
    used->ended({{1, id}, 1}, "b");
    used->ended({{1, id}, 1}, "b");  // Twice is once.
  }
  used->lost("a");
  used->lost("b");
  // With the same requests seen, both policies weigh alike now: empty workers cost the same.
  const std::vector<decode_candidate> candidates{{"a", 0, 0, 100}, {"b", 1, 0, 100}};
  routing_request request;
  request.key = {{1, 99}, 1};
  const auto signature = prompt_on(2);
  request.signature = signature;
  request.tokens = 64;
  decision why;
  used->choose(request, candidates, why);
  EXPECT_EQ(why.entries[0].cost, why.entries[1].cost);
}

TEST(union_policy, takes_requests_without_a_signature) {
  const auto policy = make_union_policy("union", options());
  EXPECT_EQ(place(*policy, 1, {}, {5, 1}), 1u);
}

TEST(step_time_model, finds_the_coefficients_and_freezes_when_it_cannot) {
  step_time_model model;
  std::mt19937_64 rng(6);
  for (int i = 0; i < 3000; ++i) {
    const double batch = 1 + static_cast<double>(rng() % 16);
    const double experts = 20 + batch * 5 + static_cast<double>(rng() % 60);
    model.observe(batch, experts, 300 + 4 * experts + 25 * batch);
  }
  EXPECT_GT(model.fits(), 0u);
  EXPECT_NEAR(model.now().a, 300, 10);
  EXPECT_NEAR(model.now().b, 4, 0.1);
  EXPECT_NEAR(model.now().c, 25, 1);
  const auto fits = model.fits();
  const auto before = model.now();
  step_time_model frozen = model;
  for (int i = 0; i < 50'000; ++i) {
    frozen.observe(8, 80, 820);  // As the model says, but tells nothing apart.
  }
  EXPECT_LT(frozen.fits() - fits, 400u);  // Of 780 occasions.
  EXPECT_NEAR(frozen.now().b, before.b, 1.0);
  step_time_model negative;
  for (int i = 0; i < 3000; ++i) {
    const double batch = 1 + static_cast<double>(rng() % 16);
    const double experts = 20 + static_cast<double>(rng() % 60);
    negative.observe(batch, experts, 1000 - 2 * experts + 25 * batch);
  }
  EXPECT_EQ(negative.now().b, 0);
  EXPECT_GE(negative.now().c, 0);
}

}  // namespace
}  // namespace eldr::actors
