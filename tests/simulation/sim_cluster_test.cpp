/// The simulated cluster without faults: placement, streams, signatures, cancellation, bounds.

#include "cluster/simulation/sim_cluster.hpp"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include "gpu/hash_runner.hpp"

namespace eldr::cluster {
namespace {

constexpr std::int64_t ms = 1'000'000;

sim_options small_cluster(std::uint64_t seed) {
  spdlog::set_level(spdlog::level::warn);
  sim_options o;
  o.seed = seed;
  o.model = gpu::make_hash_runner();
  return o;
}

sim_request request(std::vector<gpu::token_id> prompt, std::uint32_t tokens_max,
                    std::uint64_t seed = 5) {
  sim_request r;
  r.prompt = std::move(prompt);
  r.gen = {tokens_max, {seed, 0.8F, 0, 1.0F}};
  r.gateway = "gateway-1";
  return r;
}

std::vector<gpu::token_id> prompt_of(std::size_t n, std::uint32_t salt = 0) {
  std::vector<gpu::token_id> prompt(n);
  for (std::size_t i = 0; i < n; ++i) {
    prompt[i] = static_cast<gpu::token_id>((i * 7 + salt * 13 + 3) % 251);
  }
  return prompt;
}

void expect_at_rest(sim_cluster& cluster) {
  const auto statuses = cluster.status();
  ASSERT_EQ(statuses.size(), cluster.nodes().size());
  for (const auto& [node, counts] : statuses) {
    for (const auto* zero : {"in_flight", "waiting", "running", "leases", "pulling", "requests",
                             "depth", "blocks_pinned"}) {
      if (counts.contains(zero)) {
        EXPECT_EQ(counts.at(zero), 0) << node << " " << zero;
      }
    }
  }
  EXPECT_TRUE(cluster.actor_faults().empty());
}

class policies : public testing::TestWithParam<const char*> {};

TEST_P(policies, give_the_undisturbed_tokens) {
  auto options = small_cluster(11);
  options.settings.policy = GetParam();
  sim_cluster cluster(options);
  cluster.run_until(cluster.now_ns() + 1'000 * ms);
  for (std::uint32_t i = 0; i < 40; ++i) {
    cluster.client().submit(request(prompt_of(1 + i * 3, i % 4), 1 + i, i));
  }
  cluster.run_until(cluster.now_ns() + 20'000 * ms, [&] { return cluster.client().all_ended(); });
  for (const auto& r : cluster.client().requests()) {
    EXPECT_EQ(r.violation, "");
    EXPECT_EQ(r.error, "");
    EXPECT_EQ(r.attempts, 1u);
    EXPECT_EQ(r.tokens, gpu::hash_model_tokens(r.prompt, r.gen.sampling, r.gen.tokens_max));
  }
  cluster.run_until(cluster.now_ns() + 100 * ms);
  expect_at_rest(cluster);
}

INSTANTIATE_TEST_SUITE_P(all, policies, testing::Values("rr", "random", "jsq", "p2c"));

TEST(sim_cluster, finds_repeated_prompts_in_the_prefix_cache) {
  sim_cluster cluster(small_cluster(3));
  cluster.run_until(cluster.now_ns() + 1'000 * ms);
  for (int round = 0; round < 2; ++round) {
    cluster.client().submit(request(prompt_of(50), 5));
    cluster.run_until(cluster.now_ns() + 2'000 * ms, [&] { return cluster.client().all_ended(); });
  }
  EXPECT_EQ(cluster.client().requests()[0].cached_tokens, 0u);
  EXPECT_EQ(cluster.client().requests()[1].cached_tokens, 48u);
  EXPECT_EQ(cluster.client().requests()[0].tokens, cluster.client().requests()[1].tokens);
}

TEST(sim_cluster, frees_everything_after_cancellation_at_any_moment) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    sim_cluster cluster(small_cluster(seed));
    cluster.run_until(cluster.now_ns() + 1'000 * ms);
    for (std::uint32_t i = 0; i < 8; ++i) {
      const auto index = cluster.client().submit(request(prompt_of(40 + i, i), 60, i));
      cluster.at(cluster.now_ns() + static_cast<std::int64_t>(seed * i) * ms / 4,
                 [&cluster, index] { cluster.client().cancel(index); });
    }
    cluster.run_until(cluster.now_ns() + 5'000 * ms, [&] { return cluster.client().all_ended(); });
    cluster.run_until(cluster.now_ns() + 200 * ms);
    EXPECT_TRUE(cluster.client().all_ended()) << seed;
    expect_at_rest(cluster);
  }
}

TEST(sim_cluster, refuses_what_can_never_fit) {
  auto options = small_cluster(4);
  options.blocks = 4;
  sim_cluster cluster(options);
  cluster.run_until(cluster.now_ns() + 1'000 * ms);
  cluster.client().submit(request(prompt_of(100), 5));
  cluster.client().submit(request(prompt_of(30), 400));
  cluster.client().submit(request(prompt_of(600), 5));
  cluster.client().submit(request({}, 5));
  cluster.client().submit(request({9999}, 5));
  cluster.run_until(cluster.now_ns() + 2'000 * ms, [&] { return cluster.client().all_ended(); });
  const auto& r = cluster.client().requests();
  EXPECT_EQ(r[0].fail_reason, wire::FailReason::TOO_LARGE) << r[0].error;
  EXPECT_EQ(r[1].fail_reason, wire::FailReason::TOO_LARGE) << r[1].error;
  EXPECT_EQ(r[2].fail_reason, wire::FailReason::TOO_LARGE) << r[2].error;
  EXPECT_EQ(r[3].fail_reason, wire::FailReason::INVALID) << r[3].error;
  EXPECT_EQ(r[4].fail_reason, wire::FailReason::INVALID) << r[4].error;
  expect_at_rest(cluster);
}

TEST(sim_cluster, refuses_beyond_its_bounds_and_recovers) {
  auto options = small_cluster(8);
  options.settings.requests_max = 10;
  sim_cluster cluster(options);
  cluster.run_until(cluster.now_ns() + 1'000 * ms);
  for (std::uint32_t i = 0; i < 30; ++i) {
    cluster.client().submit(request(prompt_of(20, i), 10, i));
  }
  cluster.run_until(cluster.now_ns() + 5'000 * ms, [&] { return cluster.client().all_ended(); });
  std::size_t refused = 0;
  for (const auto& r : cluster.client().requests()) {
    refused += r.fail_reason == wire::FailReason::OVERLOADED ? 1 : 0;
  }
  EXPECT_EQ(refused, 20u);
  cluster.client().submit(request(prompt_of(20), 10));
  cluster.run_until(cluster.now_ns() + 2'000 * ms, [&] { return cluster.client().all_ended(); });
  EXPECT_EQ(cluster.client().requests().back().error, "");
  expect_at_rest(cluster);
}

}  // namespace
}  // namespace eldr::cluster
