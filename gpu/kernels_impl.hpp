#pragma once
/// The kernels, once, over a vector type of eight lanes: kernels_portable.cpp and kernels_avx2.cpp
/// instantiate them. Everything is in an unnamed namespace and no out-of-line library code is
/// called, so that nothing compiled for AVX2 can be linked into code that runs without it.

#include <cstdint>
#include <cstring>

#include "gpu/kernels.hpp"

namespace eldr::gpu {
namespace {

constexpr std::uint32_t lanes = 8;
constexpr float infinity = __builtin_huge_valf();

// --- Loads and stores, whole and partial ------------------------------------------------------

template <class V, weight_dtype W>
[[gnu::always_inline]] inline V load_as(const std::byte* p) {
  if constexpr (W == weight_dtype::f32) {
    return V::load(reinterpret_cast<const float*>(p));
  } else if constexpr (W == weight_dtype::f16) {
    return V::load_f16(p);
  } else {
    return V::load_bf16(p);
  }
}

/// The first `count` < 8 lanes from memory, the others 0.
template <class V, weight_dtype W>
inline V load_part_as(const std::byte* p, std::uint32_t count) {
  alignas(32) std::byte padded[lanes * 4] = {};
  std::memcpy(padded, p, count * bytes_of(W));
  return load_as<V, W>(padded);
}

template <class V>
inline V load_part(const float* p, std::uint32_t count) {
  return load_part_as<V, weight_dtype::f32>(reinterpret_cast<const std::byte*>(p), count);
}

template <class V>
inline void store_part(V x, float* p, std::uint32_t count) {
  alignas(32) float padded[lanes];
  x.store(padded);
  std::memcpy(p, padded, count * sizeof(float));
}

/// out[i] = f(in[i]...) for i < n, eight at a time.
template <class V, class F, class... In>
[[gnu::always_inline]] inline void map(std::uint32_t n, float* out, F f, const In*... in) {
  std::uint32_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    f(V::load(in + i)...).store(out + i);
  }
  if (i < n) {
    store_part(f(load_part<V>(in + i, n - i)...), out + i, n - i);
  }
}

// --- Dot products -----------------------------------------------------------------------------

/// Where results of a tile go: row r's to y[t][first + r * step].
struct row_place {
  std::size_t first;
  std::size_t step;
};

template <class V, int R>
[[gnu::always_inline]] inline void store_sums(const V (&rows)[R], float* y, row_place place) {
  float sums[R];
  if constexpr (R == 4) {
    V::fold4(rows[0], rows[1], rows[2], rows[3], sums);
  } else {
    for (int r = 0; r < R; ++r) {
      sums[r] = rows[r].fold();
    }
  }
  if (place.step == 1) {
    std::memcpy(y + place.first, sums, sizeof sums);
    return;
  }
  for (std::size_t r = 0; r < R; ++r) {
    y[place.first + r * place.step] = sums[r];
  }
}

/// The dot products of R weight rows with T tokens: R*T chains of fused multiply-adds, one vector
/// accumulator each, whatever R and T are. While it works, it asks memory for the bytes that lie
/// `ahead` further on behind each row, if not 0.
template <class V, weight_dtype W, int R, int T>
[[gnu::always_inline]] inline void dot_tile(const std::byte* const* w, const float* const* x,
                                            std::uint32_t n, std::size_t ahead, float* const* y,
                                            row_place place) {
  constexpr std::size_t bytes = bytes_of(W);
  constexpr std::uint32_t line = 64 / bytes;
  V acc[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) {
      acc[r][t] = V::set1(0);
    }
  }
  const auto step = [&](std::uint32_t i) __attribute__((always_inline)) {
    V xs[T];
    for (int t = 0; t < T; ++t) {
      xs[t] = V::load(x[t] + i);
    }
    for (int r = 0; r < R; ++r) {
      const V weight = load_as<V, W>(w[r] + i * bytes);
      for (int t = 0; t < T; ++t) {
        acc[r][t] = V::fma(weight, xs[t], acc[r][t]);
      }
    }
  };
  std::uint32_t i = 0;
  for (; i + line <= n; i += line) {
    if (ahead != 0) {
      for (int r = 0; r < R; ++r) {
        V::prefetch(w[r] + i * bytes + ahead);
      }
    }
    for (std::uint32_t j = 0; j < line; j += lanes) {
      step(i + j);
    }
  }
  for (; i + lanes <= n; i += lanes) {
    step(i);
  }
  if (i < n) {
    for (int r = 0; r < R; ++r) {
      const V weight = load_part_as<V, W>(w[r] + i * bytes, n - i);
      for (int t = 0; t < T; ++t) {
        acc[r][t] = V::fma(weight, load_part<V>(x[t] + i, n - i), acc[r][t]);
      }
    }
  }
  for (int t = 0; t < T; ++t) {
    V column[R];
    for (int r = 0; r < R; ++r) {
      column[r] = acc[r][t];
    }
    store_sums(column, y[t], place);
  }
}

/// R rows against all tokens, in groups of tokens that fit the registers. The first group fetches
/// the weights from memory, the others find them in the cache.
template <class V, weight_dtype W, int R>
inline void dot_rows(const std::byte* const* w, const float* const* x, std::uint32_t n,
                     std::size_t ahead, float* const* y, row_place place, std::uint32_t tokens) {
  std::uint32_t t = 0;
  while (tokens - t == 3 || tokens - t > 4) {
    dot_tile<V, W, R, 3>(w, x + t, n, t == 0 ? ahead : 0, y + t, place);
    t += 3;
  }
  for (; tokens - t >= 2; t += 2) {
    dot_tile<V, W, R, 2>(w, x + t, n, t == 0 ? ahead : 0, y + t, place);
  }
  if (t < tokens) {
    dot_tile<V, W, R, 1>(w, x + t, n, t == 0 ? ahead : 0, y + t, place);
  }
}

/// Rows are worked on four at a time. In a large matrix the four lie a quarter of it apart, so that
/// memory sees four long streams; in a small one they are neighbours, and the next four are fetched
/// ahead. Both were measured to be the fastest for their kind.
template <class V, weight_dtype W>
inline void matmul_as(const tensor_view& w, std::uint32_t row_begin, std::uint32_t row_end,
                      const float* const* x, float* const* y, std::uint32_t tokens) {
  constexpr std::size_t stream_bytes_min = 64 * 1024;
  constexpr std::size_t stream_ahead_bytes = 2048;
  const std::size_t row_bytes = std::size_t{w.cols} * bytes_of(W);
  const std::uint32_t tiles = (row_end - row_begin) / 4;
  const bool streams = tiles * row_bytes >= stream_bytes_min;
  const std::size_t step = streams ? tiles : 1;
  const std::size_t ahead = streams ? stream_ahead_bytes : 4 * row_bytes;
  for (std::uint32_t i = 0; i < tiles; ++i) {
    const std::size_t first = row_begin + (streams ? i : 4 * i);
    const std::byte* rows[4];
    for (std::size_t r = 0; r < 4; ++r) {
      rows[r] = w.data + (first + r * step) * row_bytes;
    }
    dot_rows<V, W, 4>(rows, x, w.cols, ahead, y, {first, step}, tokens);
  }
  for (std::size_t row = row_begin + 4 * tiles; row < row_end; ++row) {
    const std::byte* rows[1] = {w.data + row * row_bytes};
    dot_rows<V, W, 1>(rows, x, w.cols, 0, y, {row, 1}, tokens);
  }
}

template <class V>
void matmul(const tensor_view& w, std::uint32_t row_begin, std::uint32_t row_end,
            const float* const* x, float* const* y, std::uint32_t tokens) {
  switch (w.dtype) {
    case weight_dtype::f32:
      return matmul_as<V, weight_dtype::f32>(w, row_begin, row_end, x, y, tokens);
    case weight_dtype::f16:
      return matmul_as<V, weight_dtype::f16>(w, row_begin, row_end, x, y, tokens);
    case weight_dtype::bf16:
      return matmul_as<V, weight_dtype::bf16>(w, row_begin, row_end, x, y, tokens);
  }
}

// --- Element by element -----------------------------------------------------------------------

/// e^x by range reduction to [-ln2/2, ln2/2] and the polynomial of Cephes' expf (S. Moshier):
/// within 2 ulp. 0 below -87.33, constant above 88, NaN for NaN.
template <class V>
[[gnu::always_inline]] inline V exp_of(V x) {
  const V low = V::set1(-87.33654f);
  const V clamped = V::min(V::max(x, low), V::set1(88.0f));
  const V round = V::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer.
  const V n = V::sub(V::fma(clamped, V::set1(1.44269504f), round), round);
  V r = V::fma(n, V::set1(-0.693359375f), clamped);
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  V p = V::set1(1.9875691500e-4f);
  p = V::fma(p, r, V::set1(1.3981999507e-3f));
  p = V::fma(p, r, V::set1(8.3334519073e-3f));
  p = V::fma(p, r, V::set1(4.1665795894e-2f));
  p = V::fma(p, r, V::set1(1.6666665459e-1f));
  p = V::fma(p, r, V::set1(5.0000001201e-1f));
  const V y = V::add(V::fma(p, V::mul(r, r), r), V::set1(1));
  return V::pass_nan(x, V::zero_if_less(x, low, V::scale2(y, n)));
}

template <class V>
void exp_row(const float* x, float* out, std::uint32_t n) {
  map<V>(
      n, out, [](V v) { return exp_of(v); }, x);
}

template <class V, weight_dtype W>
inline void widen_as(const std::byte* in, float* out, std::uint32_t n) {
  std::uint32_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    load_as<V, W>(in + i * bytes_of(W)).store(out + i);
  }
  if (i < n) {
    store_part(load_part_as<V, W>(in + i * bytes_of(W), n - i), out + i, n - i);
  }
}

template <class V>
void widen(weight_dtype dtype, const std::byte* in, float* out, std::uint32_t n) {
  switch (dtype) {
    case weight_dtype::f32:
      return widen_as<V, weight_dtype::f32>(in, out, n);
    case weight_dtype::f16:
      return widen_as<V, weight_dtype::f16>(in, out, n);
    case weight_dtype::bf16:
      return widen_as<V, weight_dtype::bf16>(in, out, n);
  }
}

inline std::uint16_t round_to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) {
    return static_cast<std::uint16_t>(bits >> 16 | 0x40u);  // Rounding could make it infinite.
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <class V>
void store_kv(kv_dtype dtype, const float* in, std::byte* out, std::uint32_t n) {
  if (dtype == kv_dtype::f32) {
    std::memcpy(out, in, n * sizeof(float));
    return;
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint16_t half = round_to_bf16(in[i]);
    std::memcpy(out + i * sizeof half, &half, sizeof half);
  }
}

template <class V>
void rms_norm(const float* x, const float* weight, float eps, float* out, std::uint32_t n) {
  V squares = V::set1(0);
  std::uint32_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const V v = V::load(x + i);
    squares = V::fma(v, v, squares);
  }
  if (i < n) {
    const V v = load_part<V>(x + i, n - i);
    squares = V::fma(v, v, squares);
  }
  const float mean = squares.fold() / static_cast<float>(n);
  const V scale = V::set1(1.0f / __builtin_sqrtf(mean + eps));
  map<V>(
      n, out, [scale](V v, V w) { return V::mul(V::mul(v, scale), w); }, x, weight);
}

template <class V>
void rope(float* x, const float* cos, const float* sin, float scale, std::uint32_t half) {
  const V factor = V::set1(scale);
  const V minus = V::set1(-1);
  const auto rotate = [&](V a, V b, V c, V s, V& low, V& high) {
    low = V::mul(V::fma(a, c, V::mul(minus, V::mul(b, s))), factor);
    high = V::mul(V::fma(b, c, V::mul(a, s)), factor);
  };
  V low;
  V high;
  std::uint32_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    rotate(V::load(x + i), V::load(x + half + i), V::load(cos + i), V::load(sin + i), low, high);
    low.store(x + i);
    high.store(x + half + i);
  }
  if (i < half) {
    const std::uint32_t rest = half - i;
    rotate(load_part<V>(x + i, rest), load_part<V>(x + half + i, rest), load_part<V>(cos + i, rest),
           load_part<V>(sin + i, rest), low, high);
    store_part(low, x + i, rest);
    store_part(high, x + half + i, rest);
  }
}

template <class V>
void silu_mul(float* gate, const float* up, std::uint32_t n) {
  const V one = V::set1(1);
  const auto f = [one](V g, V u) {
    const V e = exp_of(V::mul(g, V::set1(-1)));
    return V::mul(V::div(g, V::add(one, e)), u);
  };
  map<V>(n, gate, f, static_cast<const float*>(gate), up);
}

template <class V>
void add(float* x, const float* y, std::uint32_t n) {
  map<V>(
      n, x, [](V a, V b) { return V::add(a, b); }, static_cast<const float*>(x), y);
}

template <class V>
void combine(float* x, const float* const* y, const float* weight, std::uint32_t count,
             std::uint32_t n) {
  const auto total = [&](auto load, std::uint32_t i) {
    V sum = V::set1(0);
    for (std::uint32_t j = 0; j < count; ++j) {
      sum = V::fma(V::set1(weight[j]), load(y[j] + i), sum);
    }
    return V::add(load(x + i), sum);
  };
  std::uint32_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    total([](const float* p) { return V::load(p); }, i).store(x + i);
  }
  if (i < n) {
    const std::uint32_t rest = n - i;
    store_part(total([rest](const float* p) { return load_part<V>(p, rest); }, i), x + i, rest);
  }
}

// --- Softmax and attention --------------------------------------------------------------------

template <class V>
inline float max_of(const float* x, std::uint32_t n) {
  V most = V::set1(-infinity);
  std::uint32_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    most = V::max(V::load(x + i), most);
  }
  alignas(32) float lane[lanes];
  most.store(lane);
  float max = -infinity;
  for (const float l : lane) {
    max = l > max ? l : max;
  }
  for (; i < n; ++i) {
    max = x[i] > max ? x[i] : max;
  }
  return max;
}

/// x = exp(x - max); returns the sum.
template <class V>
inline float exp_and_sum(float* x, float max, std::uint32_t n) {
  const V shift = V::set1(max);
  V sum = V::set1(0);
  std::uint32_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const V e = exp_of(V::sub(V::load(x + i), shift));
    e.store(x + i);
    sum = V::add(sum, e);
  }
  if (i < n) {
    store_part(exp_of(V::sub(load_part<V>(x + i, n - i), shift)), x + i, n - i);
    sum = V::add(sum, load_part<V>(x + i, n - i));
  }
  return sum.fold();
}

template <class V>
void softmax(float* x, std::uint32_t n) {
  const V sum = V::set1(exp_and_sum<V>(x, max_of<V>(x, n), n));
  map<V>(
      n, x, [sum](V v) { return V::div(v, sum); }, static_cast<const float*>(x));
}

/// scores[h][j] = dot(key j, query h).
template <class V, weight_dtype W, int H>
inline void score_keys(const attention_tile& tile, const float* const* query,
                       float* const* scores) {
  std::uint32_t j = 0;
  for (; j + 4 <= tile.count; j += 4) {
    dot_tile<V, W, 4, H>(tile.keys + j, query, tile.head_dim, 0, scores, {j, 1});
  }
  for (; j < tile.count; ++j) {
    dot_tile<V, W, 1, H>(tile.keys + j, query, tile.head_dim, 0, scores, {j, 1});
  }
}

/// out[h][d] = out[h][d] * decay[h] + sum over j of p[h][j] * value[j][d], in order of j, for D
/// vectors of the head dimension from `d` on.
template <class V, weight_dtype W, int H, int D>
[[gnu::always_inline]] inline void add_values(const attention_tile& tile, const float* const* p,
                                              const float* decay, float* out, std::uint32_t d) {
  V acc[H][D];
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < D; ++i) {
      acc[h][i] = V::mul(V::load(out + static_cast<std::uint32_t>(h) * tile.head_dim + d +
                                 static_cast<std::uint32_t>(i) * lanes),
                         V::set1(decay[h]));
    }
  }
  for (std::uint32_t j = 0; j < tile.count; ++j) {
    V weight[H];
    for (int h = 0; h < H; ++h) {
      weight[h] = V::set1(p[h][j]);
    }
    for (int i = 0; i < D; ++i) {
      const V value =
          load_as<V, W>(tile.values[j] + (d + static_cast<std::uint32_t>(i) * lanes) * bytes_of(W));
      for (int h = 0; h < H; ++h) {
        acc[h][i] = V::fma(weight[h], value, acc[h][i]);
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < D; ++i) {
      acc[h][i].store(out + static_cast<std::uint32_t>(h) * tile.head_dim + d +
                      static_cast<std::uint32_t>(i) * lanes);
    }
  }
}

/// The last head_dim mod 8 elements of add_values.
template <class V, weight_dtype W, int H>
inline void add_values_rest(const attention_tile& tile, const float* const* p, const float* decay,
                            float* out, std::uint32_t d) {
  const std::uint32_t rest = tile.head_dim - d;
  for (std::uint32_t h = 0; h < H; ++h) {
    float* o = out + h * tile.head_dim + d;
    V acc = V::mul(load_part<V>(o, rest), V::set1(decay[h]));
    for (std::uint32_t j = 0; j < tile.count; ++j) {
      const V value = load_part_as<V, W>(tile.values[j] + d * bytes_of(W), rest);
      acc = V::fma(V::set1(p[h][j]), value, acc);
    }
    store_part(acc, o, rest);
  }
}

/// H query heads from `head` on.
template <class V, weight_dtype W, int H>
inline void attend_heads(const attention_tile& tile, std::uint32_t head) {
  alignas(32) float p[H][attention_tile_keys];
  float* scores[H];
  const float* query[H];
  float decay[H];
  for (std::uint32_t h = 0; h < H; ++h) {
    scores[h] = p[h];
    query[h] = tile.query + (head + h) * tile.head_dim;
  }
  score_keys<V, W, H>(tile, query, scores);
  for (std::uint32_t h = 0; h < H; ++h) {
    // Lanes past the last visible key weigh exactly nothing.
    for (std::uint32_t j = tile.count; j < attention_tile_keys; ++j) {
      p[h][j] = -infinity;
    }
    float& max = tile.max[head + h];
    const float tile_max = max_of<V>(p[h], tile.count);
    const float new_max = tile_max > max ? tile_max : max;
    alignas(32) float shift[lanes];
    exp_of(V::set1(max - new_max)).store(shift);
    decay[h] = shift[0];
    max = new_max;
    const float sum = exp_and_sum<V>(p[h], new_max, attention_tile_keys);
    tile.sum[head + h] = __builtin_fmaf(tile.sum[head + h], decay[h], sum);
  }
  float* out = tile.out + head * tile.head_dim;
  std::uint32_t d = 0;
  for (; d + 4 * lanes <= tile.head_dim; d += 4 * lanes) {
    add_values<V, W, H, 4>(tile, scores, decay, out, d);
  }
  for (; d + lanes <= tile.head_dim; d += lanes) {
    add_values<V, W, H, 1>(tile, scores, decay, out, d);
  }
  if (d < tile.head_dim) {
    add_values_rest<V, W, H>(tile, scores, decay, out, d);
  }
}

template <class V, weight_dtype W>
inline void attend_as(const attention_tile& tile) {
  std::uint32_t head = 0;
  for (; head + 2 <= tile.heads; head += 2) {
    attend_heads<V, W, 2>(tile, head);
  }
  if (head < tile.heads) {
    attend_heads<V, W, 1>(tile, head);
  }
}

template <class V>
void attend(const attention_tile& tile) {
  if (tile.dtype == kv_dtype::f32) {
    attend_as<V, weight_dtype::f32>(tile);
  } else {
    attend_as<V, weight_dtype::bf16>(tile);
  }
}

// --- The floor of memory bandwidth ------------------------------------------------------------

/// Four streams, as many as matmul has and as fast as any number.
template <class V>
std::uint64_t stream_read(const std::byte* data, std::size_t n) {
  constexpr std::size_t streams = 4;
  const std::size_t part = n / streams / 64 * 64;
  V most[streams];
  for (V& m : most) {
    m = V::set1(0);
  }
  for (std::size_t i = 0; i < part; i += 64) {
    for (std::size_t s = 0; s < streams; ++s) {
      const auto* p = reinterpret_cast<const float*>(data + s * part + i);
      most[s] = V::max(V::max(V::load(p), V::load(p + lanes)), most[s]);
    }
  }
  for (std::size_t s = 1; s < streams; ++s) {
    most[0] = V::max(most[0], most[s]);
  }
  alignas(32) float out[lanes];
  most[0].store(out);
  std::uint64_t checksum;
  std::memcpy(&checksum, out, sizeof checksum);
  return checksum;
}

template <class V>
constexpr kernels kernels_of(const char* name) {
  return {.name = name,
          .matmul = matmul<V>,
          .widen = widen<V>,
          .store_kv = store_kv<V>,
          .rms_norm = rms_norm<V>,
          .rope = rope<V>,
          .softmax = softmax<V>,
          .silu_mul = silu_mul<V>,
          .add = add<V>,
          .combine = combine<V>,
          .attend = attend<V>,
          .exp = exp_row<V>,
          .stream_read = stream_read<V>};
}

}  // namespace
}  // namespace eldr::gpu
