#include "gpu/sampler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>

#include "gpu/det_math.hpp"
#include "gpu/philox.hpp"

namespace {

using eldr::gpu::det_exp;
using eldr::gpu::philox4x32;
using eldr::gpu::philox_uniform;
using eldr::gpu::sampler;
using eldr::gpu::sampling;
using eldr::gpu::token_id;
using testing::ElementsAre;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// The known answers published with Random123.
TEST(philox, known_answers) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(philox, uniform_numbers_fill_the_unit_interval_evenly) {
  std::array<int, 16> bins{};
  double sum = 0;
  for (std::uint64_t i = 0; i < 16'000; ++i) {
    const double u = philox_uniform(5, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++bins[static_cast<std::size_t>(u * 16)];
    sum += u;
  }
  EXPECT_NEAR(sum / 16'000, 0.5, 0.01);
  // Chi-squared with 15 degrees of freedom: above 44.3 once in 10,000 seeds.
  double chi = 0;
  for (const int n : bins) {
    chi += (n - 1000.0) * (n - 1000.0) / 1000.0;
  }
  EXPECT_LT(chi, 44.3);
  EXPECT_NE(philox_uniform(1, 2), philox_uniform(2, 1));
  EXPECT_NE(philox_uniform(1ULL << 40, 0), philox_uniform(0, 0));
  EXPECT_NE(philox_uniform(0, 1ULL << 40), philox_uniform(0, 0));
}

TEST(det_exp, is_within_an_ulp_of_the_true_value) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> wide(-708, 709), narrow(-2, 2);
  for (int i = 0; i < 200'000; ++i) {
    const double x = i % 2 == 0 ? wide(random) : narrow(random);
    const long double exact = std::exp(static_cast<long double>(x));
    const auto rounded = static_cast<double>(exact);
    const long double ulp = std::nextafter(rounded, infinity) - rounded;
    ASSERT_LE(std::abs(det_exp(x) - exact), ulp) << x;
  }
}

TEST(det_exp, covers_all_doubles) {
  EXPECT_EQ(det_exp(0), 1);
  EXPECT_EQ(det_exp(-0.0), 1);
  EXPECT_EQ(det_exp(-infinity), 0);
  EXPECT_EQ(det_exp(infinity), infinity);
  EXPECT_EQ(det_exp(-1e300), 0);
  EXPECT_EQ(det_exp(1e300), infinity);
  EXPECT_TRUE(std::isnan(det_exp(nan)));
  EXPECT_DOUBLE_EQ(det_exp(709.78), std::exp(709.78));
  EXPECT_NEAR(det_exp(-740), std::exp(-740), 2 * std::numeric_limits<double>::denorm_min());
  for (double x = -750; x < 709; x += 0.37) {
    ASSERT_LE(det_exp(x), det_exp(x + 0.37)) << x;
  }
  // At compile time the bits are the same.
  constexpr double e = det_exp(1);
  volatile double one = 1;
  EXPECT_EQ(det_exp(one), e);
}

/// The documented algorithm, in its most naive form.
token_id reference(const std::vector<float>& logits, const sampling& how, std::uint64_t index) {
  std::vector<token_id> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0U);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](token_id a, token_id b) { return logits[a] > logits[b]; });
  if (how.temperature == 0) {
    return ids[0];
  }
  const double max = logits[ids[0]];
  std::vector<double> weight(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weight[i] = det_exp((logits[i] - max) / how.temperature);
  }
  if (how.top_k > 0 && how.top_k < ids.size()) {
    ids.resize(how.top_k);
  }
  std::vector<token_id> by_id = ids;
  std::ranges::sort(by_id);
  double total = 0;
  for (const token_id id : by_id) {
    total += weight[id];
  }
  if (how.top_p < 1) {
    double sum = 0;
    std::size_t kept = 0;
    while (kept == 0 || (kept < ids.size() && sum < static_cast<double>(how.top_p) * total)) {
      sum += weight[ids[kept++]];
    }
    ids.resize(kept);
    total = sum;
  }
  const double goal = philox_uniform(how.seed, index) * total;
  double sum = 0;
  for (const token_id id : ids) {
    sum += weight[id];
    if (sum > goal) {
      return id;
    }
  }
  return ids.back();
}

TEST(sampler, equals_the_naive_algorithm) {
  std::mt19937_64 random(23);
  sampler s;
  for (int i = 0; i < 3000; ++i) {
    std::vector<float> logits(1 + random() % (i % 10 == 0 ? 3000 : 40));
    std::normal_distribution<float> normal(0, static_cast<float>(1 + random() % 5));
    const bool coarse = random() % 2 == 0;  // With many ties.
    for (float& logit : logits) {
      logit = coarse ? std::round(normal(random)) : normal(random);
      logit = random() % 16 == 0 ? -0.0F : logit;
    }
    sampling how;
    how.seed = random();
    how.temperature = std::array{0.0F, 0.01F, 0.7F, 1.0F, 5.0F, 1e4F}[random() % 6];
    how.top_k = std::array{0U, 0U, 1U, 2U, 20U, 1000U, 0xFFFF'FFFFU}[random() % 7];
    how.top_p = std::array{1.0F, 1.0F, 0.0F, 0.3F, 0.9F, 0.999F}[random() % 6];
    const std::uint64_t index = random() % 70'000;
    ASSERT_EQ(s.sample(logits, how, index), reference(logits, how, index))
        << "case " << i << ", temperature " << how.temperature << ", top_k " << how.top_k
        << ", top_p " << how.top_p;
  }
}

TEST(sampler, greedy_takes_the_lowest_id_of_equal_logits) {
  sampler s;
  EXPECT_EQ(s.sample(std::vector{1.0F, 3.0F, 3.0F, 2.0F}, {}, 0), 1U);
  EXPECT_EQ(s.sample(std::vector{-0.0F, 0.0F}, {}, 0), 0U);
  EXPECT_EQ(s.sample(std::vector{-infinity, -5.0F}, {}, 0), 1U);
}

TEST(sampler, frequencies_follow_the_softmax) {
  sampler s;
  const std::vector<float> logits{std::log(1.0F), std::log(2.0F), std::log(5.0F), -infinity};
  std::array<int, 4> count{};
  for (std::uint64_t i = 0; i < 8000; ++i) {
    ++count[s.sample(logits, {.seed = 9, .temperature = 1}, i)];
  }
  EXPECT_NEAR(count[0], 1000, 120);
  EXPECT_NEAR(count[1], 2000, 160);
  EXPECT_NEAR(count[2], 5000, 180);
  EXPECT_EQ(count[3], 0);
}

TEST(sampler, top_k_and_top_p_cut_the_tail) {
  sampler s;
  const std::vector<float> logits{std::log(1.0F), std::log(2.0F), std::log(5.0F), std::log(2.0F)};
  std::array<int, 4> top_2{}, top_half{}, top_more{};
  for (std::uint64_t i = 0; i < 2000; ++i) {
    ++top_2[s.sample(logits, {.seed = 1, .temperature = 1, .top_k = 2}, i)];
    ++top_half[s.sample(logits, {.seed = 1, .temperature = 1, .top_p = 0.5F}, i)];
    ++top_more[s.sample(logits, {.seed = 1, .temperature = 1, .top_p = 0.6F}, i)];
  }
  // Of the equal ones, top_k keeps the lower id.
  EXPECT_THAT(top_2, ElementsAre(0, testing::Gt(400), testing::Gt(1200), 0));
  // 5 of 10 reach a half; 0.6 needs the next token, which crosses it.
  EXPECT_THAT(top_half, ElementsAre(0, 0, 2000, 0));
  EXPECT_THAT(top_more, ElementsAre(0, testing::Gt(400), testing::Gt(1200), 0));
}

TEST(sampler, faulty_logits_and_parameters_are_errors) {
  sampler s;
  for (const auto& logits : {std::vector{nan, 1.0F}, std::vector{1.0F, nan},
                             std::vector{1.0F, infinity}, std::vector{-infinity, -infinity}}) {
    EXPECT_THROW(s.sample(logits, {}, 0), std::runtime_error);
    EXPECT_THROW(s.sample(logits, {.temperature = 1}, 0), std::runtime_error);
  }
  const std::vector logits{1.0F, 2.0F};
  EXPECT_THROW(s.sample({}, {}, 0), std::runtime_error);
  EXPECT_THROW(s.sample(logits, {.temperature = -1}, 0), std::runtime_error);
  EXPECT_THROW(s.sample(logits, {.temperature = nan}, 0), std::runtime_error);
  EXPECT_THROW(s.sample(logits, {.temperature = infinity}, 0), std::runtime_error);
  EXPECT_THROW(s.sample(logits, {.temperature = 1, .top_p = -0.1F}, 0), std::runtime_error);
  EXPECT_THROW(s.sample(logits, {.temperature = 1, .top_p = 1.1F}, 0), std::runtime_error);
  EXPECT_THROW(s.sample(logits, {.temperature = 1, .top_p = nan}, 0), std::runtime_error);
}

}  // namespace
