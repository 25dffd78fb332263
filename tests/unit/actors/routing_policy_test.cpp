#include "actors/router/routing_policy.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <stdexcept>

namespace eldr::actors {
namespace {

using testing::HasSubstr;

std::vector<decode_candidate> with_load(const std::vector<std::uint32_t>& load) {
  std::vector<decode_candidate> out;
  for (auto l : load) {
    out.push_back({"decode", -1, l, 100});
  }
  return out;
}

/// Two slots on one layer of four experts: enough for every policy.
policy_options options_with(std::uint64_t seed) {
  auto a = std::make_shared<fit::artifact>();
  a->layers = 1;
  a->experts = 4;
  a->experts_per_token = 2;
  a->block_tokens = 16;
  a->mask = {0};
  a->slots = 2;
  a->centroids = {1, 0, 0, 0, 0, 1, 0, 0};
  a->vanilla_centroids = a->centroids;
  a->cluster_patterns = {1, 0.5F, 0, 0, 0, 1, 0.5F, 0};
  a->global_pattern = {0.5F, 0.5F, 0.5F, 0.5F};
  a->labels = {{"python", 2}, {"go", 2}};
  policy_options o;
  o.seed = seed;
  o.decode_nodes = 2;
  o.artifact = std::move(a);
  o.layers = 1;
  o.experts = 4;
  o.experts_per_token = 2;
  return o;
}

std::unique_ptr<routing_policy> make(std::string_view name, std::uint64_t seed) {
  return make_policy(name, options_with(seed));
}

std::size_t pick(routing_policy& policy, const std::vector<decode_candidate>& candidates) {
  decision why;
  const auto chosen = policy.choose({}, candidates, why);
  EXPECT_EQ(why.chosen, chosen);
  return chosen;
}

std::vector<int> histogram(routing_policy& policy, const std::vector<decode_candidate>& candidates,
                           int draws) {
  std::vector<int> hits(candidates.size(), 0);
  for (int i = 0; i < draws; ++i) {
    ++hits.at(pick(policy, candidates));
  }
  return hits;
}

/// Pearson's statistic against equal shares.
double chi_square(const std::vector<int>& hits) {
  double total = 0;
  for (auto h : hits) {
    total += h;
  }
  const double expected = total / static_cast<double>(hits.size());
  double sum = 0;
  for (auto h : hits) {
    sum += (h - expected) * (h - expected) / expected;
  }
  return sum;
}

/// Far above what 7 degrees of freedom give by chance (p < 1e-6).
constexpr double chi_square_7_max = 42;

TEST(routing_policy, every_listed_name_makes_a_policy_of_that_name) {
  for (auto name : policy_names()) {
    EXPECT_EQ(make(name, 1)->name(), name);
  }
}

TEST(routing_policy, an_unknown_name_is_refused_with_the_known_ones) {
  try {
    make("fastest", 1);
    FAIL() << "an unknown policy was made";
  } catch (const std::invalid_argument& e) {
    EXPECT_THAT(e.what(), HasSubstr("'fastest'"));
    for (auto name : policy_names()) {
      EXPECT_THAT(e.what(), HasSubstr(std::string(name)));
    }
  }
}

TEST(routing_policy, is_deterministic_in_its_seed) {
  std::mt19937 rng(8);
  std::vector<std::vector<decode_candidate>> inputs;
  for (int i = 0; i < 300; ++i) {
    std::vector<std::uint32_t> load(1 + rng() % 9);
    std::generate(load.begin(), load.end(), [&] { return rng() % 4; });
    inputs.push_back(with_load(load));
  }
  for (auto name : policy_names()) {
    const auto run = [&](std::uint64_t seed) {
      auto policy = make(name, seed);
      std::vector<std::size_t> out;
      for (const auto& c : inputs) {
        out.push_back(pick(*policy, c));
        EXPECT_LT(out.back(), c.size());
      }
      return out;
    };
    EXPECT_EQ(run(5), run(5)) << name;
    // Unlabelled requests join the shortest queue under domain; the others draw nothing.
    const bool draws = name == "random" || name == "jsq" || name == "p2c" || name == "domain";
    EXPECT_EQ(run(5) != run(6), draws) << name;
  }
}

TEST(round_robin, cycles_whatever_the_load) {
  auto policy = make("rr", 1);
  const auto c = with_load({9, 0, 0});
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(pick(*policy, c), i % 3);
  }
}

TEST(round_robin, stays_in_range_when_workers_come_and_go) {
  auto policy = make("rr", 1);
  for (std::size_t n : {3, 1, 5, 2, 7}) {
    EXPECT_LT(pick(*policy, with_load(std::vector<std::uint32_t>(n, 0))), n);
  }
}

TEST(uniform_random, is_even) {
  auto policy = make("random", 3);
  EXPECT_LT(chi_square(histogram(*policy, with_load({0, 1, 2, 3, 4, 5, 6, 7}), 16'000)),
            chi_square_7_max);
}

TEST(shortest_queue, always_takes_a_least_loaded_worker) {
  auto policy = make("jsq", 3);
  std::mt19937 rng(4);
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::uint32_t> load(1 + rng() % 8);
    std::generate(load.begin(), load.end(), [&] { return rng() % 5; });
    const auto least = *std::min_element(load.begin(), load.end());
    ASSERT_EQ(load[pick(*policy, with_load(load))], least);
  }
}

TEST(shortest_queue, spreads_ties_evenly_wherever_they_lie) {
  auto policy = make("jsq", 3);
  const auto hits = histogram(*policy, with_load({1, 5, 1, 1, 1, 9, 1, 1, 1, 1}), 16'000);
  std::vector<int> tied = hits;
  EXPECT_EQ(hits[1], 0);
  EXPECT_EQ(hits[5], 0);
  tied.erase(tied.begin() + 5);
  tied.erase(tied.begin() + 1);
  EXPECT_LT(chi_square(tied), chi_square_7_max);
}

TEST(power_of_two, never_takes_the_most_loaded_of_several) {
  auto policy = make("p2c", 3);
  EXPECT_EQ(histogram(*policy, with_load({2, 2, 9, 2}), 4000)[2], 0);
  EXPECT_EQ(histogram(*policy, with_load({1, 0}), 100)[0], 0) << "of two it always sees both";
}

TEST(power_of_two, takes_a_worker_as_often_as_it_wins_a_pair) {
  auto policy = make("p2c", 3);
  // Of the 6 pairs, the least loaded wins 3, the next 2, then 1, and the most loaded none.
  constexpr int draws = 12'000;
  const auto hits = histogram(*policy, with_load({3, 2, 1, 0}), draws);
  EXPECT_NEAR(hits[3], draws / 2, draws / 40);
  EXPECT_NEAR(hits[2], draws / 3, draws / 40);
  EXPECT_NEAR(hits[1], draws / 6, draws / 40);
  EXPECT_EQ(hits[0], 0);
}

TEST(power_of_two, is_even_among_equals) {
  auto policy = make("p2c", 3);
  EXPECT_LT(chi_square(histogram(*policy, with_load(std::vector<std::uint32_t>(8, 1)), 16'000)),
            chi_square_7_max);
}

TEST(power_of_two, a_single_worker_is_taken) {
  EXPECT_EQ(pick(*make("p2c", 3), with_load({4})), 0U);
}

}  // namespace
}  // namespace eldr::actors
