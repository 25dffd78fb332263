#include "gpu/kernels.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace eldr::gpu {
namespace {

using rows = std::vector<std::vector<float>>;

constexpr float poison = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_row(std::mt19937& rng, std::size_t n, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> row(n);
  std::generate(row.begin(), row.end(), [&] { return normal(rng); });
  return row;
}

rows random_rows(std::mt19937& rng, std::size_t count, std::size_t n) {
  rows all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(random_row(rng, n));
  }
  return all;
}

/// Equal bits, NaNs excepted: every NaN equals every other.
::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
    if (!both_nan && std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

/// Weights of random finite bits in a dtype, with their exact values.
struct random_weights {
  std::vector<std::byte> bytes;
  std::vector<double> values;
  tensor_view view;

  random_weights(std::mt19937& rng, weight_dtype dtype, std::uint32_t row_count,
                 std::uint32_t cols) {
    std::normal_distribution<float> normal;
    const std::size_t size = bytes_of(dtype);
    bytes.resize(std::size_t{row_count} * cols * size);
    for (std::size_t i = 0; i < std::size_t{row_count} * cols; ++i) {
      const float x = normal(rng);
      std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
      if (dtype == weight_dtype::f32) {
        values.push_back(x);
      } else if (dtype == weight_dtype::bf16) {
        bits >>= 16;
        values.push_back(std::bit_cast<float>(bits << 16));
      } else {
        bits = rng() & 0xbfffu;  // Below 2 in magnitude, subnormals included.
        const double mantissa = (bits & 0x3ffu) / 1024.0;
        const int exponent = static_cast<int>(bits >> 10 & 31u);
        const double magnitude =
            exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1 + mantissa, exponent - 15);
        values.push_back((bits & 0x8000u) != 0 ? -magnitude : magnitude);
      }
      std::memcpy(bytes.data() + i * size, &bits, size);
    }
    view = {dtype, bytes.data(), row_count, cols};
  }
};

constexpr weight_dtype all_dtypes[] = {weight_dtype::f32, weight_dtype::f16, weight_dtype::bf16};

std::vector<const kernels*> implementations() {
  std::vector<const kernels*> all{&select_kernels(isa::portable)};
  if (cpu_has_avx2()) {
    all.push_back(&select_kernels(isa::avx2));
  }
  return all;
}

rows matmul(const kernels& k, const tensor_view& w, const rows& x) {
  rows y(x.size(), std::vector<float>(w.rows, poison));
  std::vector<const float*> in;
  std::vector<float*> out;
  for (std::size_t t = 0; t < x.size(); ++t) {
    in.push_back(x[t].data());
    out.push_back(y[t].data());
  }
  k.matmul(w, 0, w.rows, in.data(), out.data(), static_cast<std::uint32_t>(x.size()));
  return y;
}

TEST(kernels, portable_and_avx2_are_chosen_by_name) {
  EXPECT_STREQ(select_kernels(isa::portable).name, "portable");
  EXPECT_STREQ(select_kernels().name, cpu_has_avx2() ? "avx2" : "portable");
}

TEST(kernels, matmul_is_the_dot_product_on_odd_shapes) {
  std::mt19937 rng(1);
  for (int round = 0; round < 60; ++round) {
    const std::uint32_t cols = 1 + rng() % 200;
    const random_weights w(rng, all_dtypes[round % 3], 1 + rng() % 40, cols);
    const rows x = random_rows(rng, 1 + rng() % 9, cols);
    for (const kernels* k : implementations()) {
      const rows y = matmul(*k, w.view, x);
      for (std::size_t t = 0; t < x.size(); ++t) {
        for (std::uint32_t r = 0; r < w.view.rows; ++r) {
          double exact = 0;
          double magnitude = 0;
          for (std::uint32_t c = 0; c < cols; ++c) {
            const double term = w.values[std::size_t{r} * cols + c] * x[t][c];
            exact += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(y[t][r], exact, 1e-6 * magnitude + 1e-30);
        }
      }
    }
  }
}

TEST(kernels, a_matmul_row_depends_on_nothing_but_itself) {
  std::mt19937 rng(2);
  for (int round = 0; round < 60; ++round) {
    const std::uint32_t cols = 1 + rng() % 150;
    const std::uint32_t row_count = 1 + rng() % 40;
    const random_weights w(rng, all_dtypes[round % 3], row_count, cols);
    const rows x = random_rows(rng, 1 + rng() % 12, cols);
    const rows together = matmul(select_kernels(isa::portable), w.view, x);
    for (const kernels* k : implementations()) {
      const rows again = matmul(*k, w.view, x);
      for (std::size_t t = 0; t < x.size(); ++t) {
        EXPECT_TRUE(same_bits(again[t], together[t])) << k->name;
        EXPECT_TRUE(same_bits(matmul(*k, w.view, {x[t]})[0], together[t])) << k->name;
      }
      // A part of the rows leaves the others alone.
      const std::uint32_t begin = rng() % row_count;
      const std::uint32_t end = begin + rng() % (row_count - begin + 1);
      std::vector<float> part(row_count, poison);
      const float* in = x[0].data();
      float* out = part.data();
      k->matmul(w.view, begin, end, &in, &out, 1);
      std::vector<float> expected(row_count, poison);
      std::copy(together[0].begin() + begin, together[0].begin() + end, expected.begin() + begin);
      EXPECT_TRUE(same_bits(part, expected)) << k->name;
    }
  }
}

TEST(kernels, widen_reads_every_half_exactly) {
  std::vector<std::uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), std::uint16_t{0});
  const auto* bytes = reinterpret_cast<const std::byte*>(halves.data());
  for (const weight_dtype dtype : {weight_dtype::f16, weight_dtype::bf16}) {
    std::vector<std::vector<float>> out;
    for (const kernels* k : implementations()) {
      out.emplace_back(65536, poison);
      k->widen(dtype, bytes, out.back().data(), 65536);
      EXPECT_TRUE(same_bits(out.back(), out.front()));
    }
    EXPECT_EQ(out[0][dtype == weight_dtype::f16 ? 0x3c00 : 0x3f80], 1.0f);
    EXPECT_EQ(out[0][0x8000], 0.0f);
    EXPECT_EQ(out[0][1], std::ldexp(1.0f, dtype == weight_dtype::f16 ? -24 : -133));
  }
}

TEST(kernels, kv_in_bf16_rounds_to_nearest_even) {
  const std::vector<std::pair<std::uint32_t, std::uint16_t>> cases{
      {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80},
      {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0xbf818000, 0xbf82},
      {0x7f7fffff, 0x7f80}, {0x7f800001, 0x7fc0}, {0xff800000, 0xff80}};
  for (const kernels* k : implementations()) {
    for (const auto& [in, expected] : cases) {
      const auto x = std::bit_cast<float>(in);
      std::uint16_t out = 0;
      k->store_kv(kv_dtype::bf16, &x, reinterpret_cast<std::byte*>(&out), 1);
      EXPECT_EQ(out, expected) << std::hex << in;
    }
  }
}

TEST(kernels, exp_is_accurate_and_equal_everywhere) {
  std::mt19937 rng(3);
  std::uniform_real_distribution<float> uniform(-90, 88);
  std::vector<float> x(100'000);
  std::generate(x.begin(), x.end(), [&] { return uniform(rng); });
  x.insert(x.end(),
           {0.0f, -0.0f, -1e-30f, -88.0f, -1e30f, 89.0f, -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::infinity(), poison});
  std::vector<std::vector<float>> out;
  for (const kernels* k : implementations()) {
    out.emplace_back(x.size(), -1.0f);
    k->exp(x.data(), out.back().data(), static_cast<std::uint32_t>(x.size()));
    EXPECT_TRUE(same_bits(out.back(), out.front()));
  }
  for (std::size_t i = 0; i < 100'000; ++i) {
    if (x[i] > -87.3f) {
      const double exact = std::exp(static_cast<double>(x[i]));
      ASSERT_NEAR(out[0][i] / exact, 1, 2.4e-7) << x[i];
    }
  }
  const float* edge = out[0].data() + 100'000;
  EXPECT_EQ(edge[0], 1.0f);
  EXPECT_EQ(edge[1], 1.0f);
  EXPECT_EQ(edge[2], 1.0f);
  EXPECT_EQ(edge[3], 0.0f);
  EXPECT_EQ(edge[4], 0.0f);
  EXPECT_GT(edge[5], 1e38f);
  EXPECT_EQ(edge[6], 0.0f);
  EXPECT_TRUE(std::isnan(edge[8]));
}

/// Runs `f(kernels, n, x)`, which changes x, on random rows, and compares with `exact(x)[i]`.
template <class F, class Exact>
void check_rowwise(F f, Exact exact, double tolerance) {
  std::mt19937 rng(4);
  for (std::uint32_t n = 1; n < 70; ++n) {
    const std::vector<float> x = random_row(rng, n, 3);
    std::vector<std::vector<float>> out;
    for (const kernels* k : implementations()) {
      out.push_back(x);
      f(*k, n, out.back().data());
      EXPECT_TRUE(same_bits(out.back(), out.front())) << n;
    }
    const std::vector<double> expected = exact(x);
    for (std::uint32_t i = 0; i < n; ++i) {
      ASSERT_NEAR(out[0][i], expected[i], tolerance * (std::abs(expected[i]) + 1e-3)) << n;
    }
  }
}

TEST(kernels, rms_norm_matches_its_formula) {
  std::mt19937 rng(5);
  const std::vector<float> weight = random_row(rng, 70);
  check_rowwise([&](const kernels& k, std::uint32_t n,
                    float* x) { k.rms_norm(x, weight.data(), 1e-6f, x, n); },
                [&](const std::vector<float>& x) {
                  double squares = 0;
                  for (const float v : x) {
                    squares += static_cast<double>(v) * v;
                  }
                  const double scale =
                      1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
                  std::vector<double> y;
                  for (std::size_t i = 0; i < x.size(); ++i) {
                    y.push_back(x[i] * scale * weight[i]);
                  }
                  return y;
                },
                1e-6);
}

TEST(kernels, softmax_matches_its_formula) {
  check_rowwise([](const kernels& k, std::uint32_t n, float* x) { k.softmax(x, n); },
                [](const std::vector<float>& x) {
                  std::vector<double> y;
                  double sum = 0;
                  for (const float v : x) {
                    y.push_back(std::exp(static_cast<double>(v)));
                    sum += y.back();
                  }
                  for (double& v : y) {
                    v /= sum;
                  }
                  return y;
                },
                2e-6);
}

TEST(kernels, silu_mul_matches_its_formula) {
  std::mt19937 rng(6);
  const std::vector<float> up = random_row(rng, 70);
  check_rowwise([&](const kernels& k, std::uint32_t n, float* x) { k.silu_mul(x, up.data(), n); },
                [&](const std::vector<float>& x) {
                  std::vector<double> y;
                  for (std::size_t i = 0; i < x.size(); ++i) {
                    y.push_back(x[i] / (1 + std::exp(-static_cast<double>(x[i]))) * up[i]);
                  }
                  return y;
                },
                2e-6);
  for (const kernels* k : implementations()) {
    float extremes[] = {1e30f, -1e30f, 0.0f};
    const float ones[] = {1, 1, 1};
    k->silu_mul(extremes, ones, 3);
    EXPECT_EQ(extremes[0], 1e30f);
    EXPECT_NEAR(extremes[1], 0, 1e-7);
    EXPECT_EQ(extremes[2], 0);
  }
}

TEST(kernels, rope_rotates_halves_and_scales) {
  std::mt19937 rng(7);
  for (std::uint32_t half = 1; half < 40; ++half) {
    const std::vector<float> x = random_row(rng, 2 * half);
    std::vector<float> cos(half);
    std::vector<float> sin(half);
    for (std::uint32_t i = 0; i < half; ++i) {
      cos[i] = std::cos(static_cast<float>(i));
      sin[i] = std::sin(static_cast<float>(i));
    }
    std::vector<std::vector<float>> out;
    for (const kernels* k : implementations()) {
      out.push_back(x);
      k->rope(out.back().data(), cos.data(), sin.data(), 0.5f, half);
      EXPECT_TRUE(same_bits(out.back(), out.front()));
    }
    for (std::uint32_t i = 0; i < half; ++i) {
      EXPECT_NEAR(out[0][i], 0.5 * (x[i] * cos[i] - x[half + i] * sin[i]), 1e-6);
      EXPECT_NEAR(out[0][half + i], 0.5 * (x[half + i] * cos[i] + x[i] * sin[i]), 1e-6);
    }
  }
}

TEST(kernels, combine_adds_weighted_rows) {
  std::mt19937 rng(8);
  for (std::uint32_t n = 1; n < 40; ++n) {
    const rows y = random_rows(rng, 5, n);
    const std::vector<float> weight = random_row(rng, 5);
    const std::vector<float> x = random_row(rng, n);
    std::vector<const float*> in;
    for (const auto& row : y) {
      in.push_back(row.data());
    }
    std::vector<std::vector<float>> out;
    std::vector<std::vector<float>> plain;
    for (const kernels* k : implementations()) {
      out.push_back(x);
      k->combine(out.back().data(), in.data(), weight.data(), 5, n);
      EXPECT_TRUE(same_bits(out.back(), out.front()));
      plain.push_back(x);
      k->add(plain.back().data(), y[0].data(), n);
      EXPECT_TRUE(same_bits(plain.back(), plain.front()));
    }
    for (std::uint32_t i = 0; i < n; ++i) {
      double exact = x[i];
      for (int j = 0; j < 5; ++j) {
        exact += static_cast<double>(weight[j]) * y[j][i];
      }
      EXPECT_NEAR(out[0][i], exact, 1e-5);
      EXPECT_EQ(plain[0][i], x[i] + y[0][i]);
    }
  }
}

// --- Attention --------------------------------------------------------------------------------

/// Keys and values of some positions, in a KV dtype, each row where nothing follows it.
struct random_kv {
  kv_dtype dtype;
  std::uint32_t head_dim;
  std::vector<std::vector<std::byte>> keys;
  std::vector<std::vector<std::byte>> values;

  random_kv(std::mt19937& rng, kv_dtype type, std::uint32_t dim, std::uint32_t count)
      : dtype(type), head_dim(dim) {
    for (auto* side : {&keys, &values}) {
      for (std::uint32_t i = 0; i < count; ++i) {
        side->emplace_back(dim * bytes_of(type));
        const std::vector<float> row = random_row(rng, dim);
        select_kernels().store_kv(type, row.data(), side->back().data(), dim);
      }
    }
  }
  double at(const std::vector<std::byte>& row, std::uint32_t d) const {
    float x = 0;
    select_kernels().widen(dtype == kv_dtype::f32 ? weight_dtype::f32 : weight_dtype::bf16,
                           row.data() + d * bytes_of(dtype), &x, 1);
    return x;
  }
};

/// Softmax-weighted sum of values, tile by tile, divided by the softmax's sum.
std::vector<float> attend(const kernels& k, const random_kv& kv, const std::vector<float>& query) {
  const auto heads = static_cast<std::uint32_t>(query.size() / kv.head_dim);
  std::vector<float> max(heads, -std::numeric_limits<float>::infinity());
  std::vector<float> sum(heads, 0);
  std::vector<float> out(query.size(), 0);
  const auto count = static_cast<std::uint32_t>(kv.keys.size());
  for (std::uint32_t begin = 0; begin < count; begin += attention_tile_keys) {
    std::vector<const std::byte*> keys;
    std::vector<const std::byte*> values;
    for (std::uint32_t j = begin; j < std::min(count, begin + attention_tile_keys); ++j) {
      keys.push_back(kv.keys[j].data());
      values.push_back(kv.values[j].data());
    }
    k.attend({.dtype = kv.dtype,
              .head_dim = kv.head_dim,
              .heads = heads,
              .query = query.data(),
              .keys = keys.data(),
              .values = values.data(),
              .count = static_cast<std::uint32_t>(keys.size()),
              .max = max.data(),
              .sum = sum.data(),
              .out = out.data()});
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] /= sum[i / kv.head_dim];
  }
  return out;
}

TEST(kernels, attention_matches_a_direct_softmax_for_any_shape) {
  std::mt19937 rng(9);
  for (int round = 0; round < 60; ++round) {
    const std::uint32_t head_dim = 2 * (1 + rng() % 40);
    const std::uint32_t heads = 1 + rng() % 5;
    const random_kv kv(rng, round % 2 == 0 ? kv_dtype::f32 : kv_dtype::bf16, head_dim,
                       1 + rng() % 200);
    const std::vector<float> query = random_row(rng, std::size_t{heads} * head_dim, 0.5f);
    const std::vector<float> out = attend(select_kernels(isa::portable), kv, query);
    EXPECT_TRUE(same_bits(attend(select_kernels(), kv, query), out));
    for (std::uint32_t h = 0; h < heads; ++h) {
      // One head alone has the bits that it has among others.
      const std::vector<float> alone(query.begin() + h * head_dim,
                                     query.begin() + (h + 1) * head_dim);
      EXPECT_TRUE(same_bits(attend(select_kernels(), kv, alone),
                            {out.begin() + h * head_dim, out.begin() + (h + 1) * head_dim}));
      std::vector<double> exact(head_dim);
      double sum = 0;
      for (std::size_t j = 0; j < kv.keys.size(); ++j) {
        double score = 0;
        for (std::uint32_t d = 0; d < head_dim; ++d) {
          score += alone[d] * kv.at(kv.keys[j], d);
        }
        const double weight = std::exp(score);
        sum += weight;
        for (std::uint32_t d = 0; d < head_dim; ++d) {
          exact[d] += weight * kv.at(kv.values[j], d);
        }
      }
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        ASSERT_NEAR(out[h * head_dim + d], exact[d] / sum, 2e-5);
      }
    }
  }
}

TEST(kernels, stream_read_touches_the_bytes) {
  std::vector<float> data(4096, 1.0f);
  const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
  for (const kernels* k : implementations()) {
    const std::uint64_t before = k->stream_read(bytes, data.size() * 4);
    data[1000] = 2.0f;
    data[1001] = 2.0f;
    EXPECT_NE(k->stream_read(bytes, data.size() * 4), before);
    data[1000] = data[1001] = 1.0f;
  }
}

}  // namespace
}  // namespace eldr::gpu
