#include "gpu/expert_layer.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gpu/moe_bench.hpp"
#include "gpu/top_k.hpp"

namespace eldr::gpu {
namespace {

TEST(top_k, equals_a_stable_sort) {
  std::mt19937 rng(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<float> scores(1 + rng() % 70);
    std::generate(scores.begin(), scores.end(), [&] { return static_cast<float>(rng() % 9); });
    std::vector<std::uint16_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::uint16_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return scores[a] > scores[b]; });
    order.resize(1 + rng() % order.size());
    std::vector<std::uint16_t> best(order.size());
    top_k(scores, best);
    EXPECT_EQ(best, order);
  }
}

TEST(top_k, puts_nan_last) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::uint16_t> best(4);
  top_k(std::vector<float>{nan, 1, nan, 2, -3}, best);
  EXPECT_EQ(best, (std::vector<std::uint16_t>{3, 1, 4, 0}));
}

/// An expert layer of random f32 weights, with a naive evaluation in double.
struct random_layer {
  std::uint32_t hidden;
  std::uint32_t width;
  std::vector<std::vector<float>> matrices;
  std::vector<expert_weights> experts;

  random_layer(std::mt19937& rng, std::uint32_t hidden_size, std::uint32_t expert_width,
               std::uint32_t count)
      : hidden(hidden_size), width(expert_width) {
    std::normal_distribution<float> normal(0, 0.3F);
    const auto matrix = [&](std::uint32_t rows, std::uint32_t cols) {
      matrices.emplace_back(std::size_t{rows} * cols);
      std::generate(matrices.back().begin(), matrices.back().end(), [&] { return normal(rng); });
      return tensor_view{weight_dtype::f32,
                         reinterpret_cast<const std::byte*>(matrices.back().data()), rows, cols};
    };
    for (std::uint32_t e = 0; e < count; ++e) {
      experts.push_back({.gate = matrix(width, hidden),
                         .up = matrix(width, hidden),
                         .down = matrix(hidden, width)});
    }
  }

  static double dot(const tensor_view& w, std::uint32_t row, const std::vector<double>& x) {
    const auto* values = reinterpret_cast<const float*>(w.row(row));
    return std::inner_product(x.begin(), x.end(), values, 0.0);
  }
  std::vector<double> evaluate(const expert_weights& expert, const std::vector<double>& x) const {
    std::vector<double> inner;
    for (std::uint32_t r = 0; r < width; ++r) {
      const double gate = dot(expert.gate, r, x);
      inner.push_back(gate / (1 + std::exp(-gate)) * dot(expert.up, r, x));
    }
    std::vector<double> out;
    for (std::uint32_t r = 0; r < hidden; ++r) {
      out.push_back(dot(expert.down, r, inner));
    }
    return out;
  }
};

struct layer_input {
  std::uint32_t tokens;
  std::uint32_t k;
  row_buffer in;
  std::vector<std::uint16_t> choices;
  std::vector<float> weights;

  layer_input(std::mt19937& rng, const random_layer& layer)
      : tokens(1 + rng() % 9),
        k(static_cast<std::uint32_t>(1 + rng() % std::min<std::size_t>(4, layer.experts.size()))),
        in(layer.hidden) {
    std::normal_distribution<float> normal;
    in.reserve(tokens);
    std::vector<std::uint16_t> ids(layer.experts.size());
    std::iota(ids.begin(), ids.end(), std::uint16_t{0});
    for (std::uint32_t t = 0; t < tokens; ++t) {
      std::generate_n(in.row(t), layer.hidden, [&] { return normal(rng); });
      std::shuffle(ids.begin(), ids.end(), rng);
      choices.insert(choices.end(), ids.begin(), ids.begin() + k);
      std::generate_n(std::back_inserter(weights), k, [&] { return normal(rng); });
    }
  }
};

/// Adds the layer's output to rows of ones.
std::vector<std::vector<float>> run(const random_layer& layer, const layer_input& input,
                                    std::uint32_t threads, isa instructions) {
  thread_team team(threads);
  expert_layer experts(select_kernels(instructions), team, layer.hidden, layer.width);
  std::vector<std::vector<float>> out(input.tokens, std::vector<float>(layer.hidden, 1));
  std::vector<float*> rows;
  for (auto& row : out) {
    rows.push_back(row.data());
  }
  experts.run(layer.experts, input.in.from(), rows.data(), input.choices, input.weights, input.k);
  return out;
}

TEST(expert_layer, adds_the_weighted_experts_for_any_shape) {
  std::mt19937 rng(2);
  for (int round = 0; round < 40; ++round) {
    const random_layer layer(rng, 1 + rng() % 50, 1 + rng() % 30, 1 + rng() % 12);
    const layer_input input(rng, layer);
    const auto out = run(layer, input, 1, isa::best);
    for (std::uint32_t t = 0; t < input.tokens; ++t) {
      const std::vector<double> x(input.in.row(t), input.in.row(t) + layer.hidden);
      std::vector<double> expected(layer.hidden, 1);
      for (std::uint32_t j = 0; j < input.k; ++j) {
        const auto y = layer.evaluate(layer.experts[input.choices[t * input.k + j]], x);
        for (std::uint32_t d = 0; d < layer.hidden; ++d) {
          expected[d] += input.weights[t * input.k + j] * y[d];
        }
      }
      for (std::uint32_t d = 0; d < layer.hidden; ++d) {
        ASSERT_NEAR(out[t][d], expected[d], 1e-4 * (1 + std::abs(expected[d])));
      }
    }
    EXPECT_EQ(run(layer, input, 3, isa::best), out);
    EXPECT_EQ(run(layer, input, 2, isa::portable), out);
  }
}

TEST(expert_layer, counts_distinct_experts) {
  std::mt19937 rng(3);
  const random_layer layer(rng, 8, 8, 5);
  thread_team team(1);
  expert_layer experts(select_kernels(), team, 8, 8);
  row_buffer rows(8);
  rows.reserve(3);
  row_buffer hidden(8);
  hidden.reserve(3);
  const std::vector<std::uint16_t> choices{1, 4, 4, 0, 1, 0};
  const std::vector<float> weights(6, 0.5F);
  experts.run(layer.experts, rows.from(), hidden.from(), choices, weights, 2);
  EXPECT_EQ(experts.distinct(), 3u);
}

TEST(moe_bench, measures_a_small_layer) {
  const moe_bench_result result = run_moe_bench({.hidden = 64,
                                                 .expert_width = 32,
                                                 .experts = 16,
                                                 .experts_per_token = 2,
                                                 .tokens = 4,
                                                 .union_experts = 8,
                                                 .dtype = weight_dtype::bf16,
                                                 .threads = 2,
                                                 .repeats = 3,
                                                 .weight_bytes_min = 1 << 20});
  EXPECT_EQ(result.union_bytes, 8u * 3 * 64 * 32 * 2);
  EXPECT_GT(result.step_min_s, 0);
  EXPECT_GE(result.step_s, result.step_min_s);
  EXPECT_GE(result.read_s, result.read_min_s);
  EXPECT_GT(result.of_read_bandwidth(), 0);
}

TEST(moe_bench, refuses_a_union_that_cannot_be) {
  EXPECT_THROW(run_moe_bench({.tokens = 2, .union_experts = 17}), std::runtime_error);
  EXPECT_THROW(run_moe_bench({.tokens = 2, .union_experts = 7}), std::runtime_error);
  EXPECT_THROW(run_moe_bench({.tokens = 0}), std::runtime_error);
}

}  // namespace
}  // namespace eldr::gpu
