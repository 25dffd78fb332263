#include "fit/transform.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "fit/error.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace eldr::fit {
namespace {

static_assert(std::endian::native == std::endian::little, "signatures are read as they come");

constexpr std::size_t lanes = 8;        // Cells of a vector.
constexpr std::size_t group_slots = 8;  // Slots scored together: their sums fill 8 registers.
constexpr std::size_t alignment = 64;

// The compiler's own vectors: one body serves both paths, and with neither contraction nor
// reassociation allowed both give the same bits.
using float_vector = float __attribute__((vector_size(lanes * sizeof(float)), may_alias));
using count_vector =
    std::uint16_t __attribute__((vector_size(lanes * sizeof(std::uint16_t)), may_alias));

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

[[gnu::always_inline]] inline void take_square_root(float_vector& value) {
#if defined(__x86_64__)
  __m128 halves[2];  // These instructions are part of every x86-64 processor.
  std::memcpy(halves, &value, sizeof(value));
  halves[0] = _mm_sqrt_ps(halves[0]);
  halves[1] = _mm_sqrt_ps(halves[1]);
  std::memcpy(&value, halves, sizeof(value));
#else
  for (std::size_t i = 0; i < lanes; ++i) {
    value[i] = std::sqrt(value[i]);
  }
#endif
}

[[gnu::always_inline]] inline float fold(const float_vector& value) {
  return ((value[0] + value[4]) + (value[2] + value[6])) +
         ((value[1] + value[5]) + (value[3] + value[7]));
}

/// One vector of the transform.
template <representation kind>
[[gnu::always_inline]] inline void transform_vector(const count_vector& counts,
                                                    const float* weights, float* out,
                                                    float_vector& squares) {
  float_vector value;
  if constexpr (kind == representation::binary) {
    value = __builtin_convertvector(reinterpret_cast<count_vector>(counts > 0) & 1, float_vector);
  } else {
    value = __builtin_convertvector(counts, float_vector);
  }
  if constexpr (kind == representation::count_idf) {
    value *= *reinterpret_cast<const float_vector*>(weights);
  }
  if constexpr (kind == representation::sqrt_count) {
    take_square_root(value);
  }
  squares += value * value;
  *reinterpret_cast<float_vector*>(out) = value;
}

struct transform_input {
  const std::byte* signature;
  std::span<const std::size_t> layer_offsets;
  std::size_t experts;
  std::size_t stride;
  const float* weights;
};

/// Transforms all masked layers into `out`; returns the squared norm.
template <representation kind>
[[gnu::always_inline]] inline float transform_layers(const transform_input& input, float* out) {
  float_vector squares{};
  const float* weights = input.weights;
  const std::size_t whole = input.experts / lanes * lanes;
  const std::size_t rest_bytes = (input.experts - whole) * sizeof(std::uint16_t);
  for (const std::size_t offset : input.layer_offsets) {
    const std::byte* counts = input.signature + offset;
    for (std::size_t e = 0; e < input.stride; e += lanes) {
      count_vector loaded{};
      if (e < whole) {
        std::memcpy(&loaded, counts + e * sizeof(std::uint16_t), sizeof(loaded));
      } else {
        std::memcpy(&loaded, counts + e * sizeof(std::uint16_t), rest_bytes);
      }
      transform_vector<kind>(loaded, weights + e, out + e, squares);
    }
    weights += input.stride;
    out += input.stride;
  }
  return fold(squares);
}

[[gnu::always_inline]] inline float transform_as(representation kind, const transform_input& input,
                                                 float* out) {
  switch (kind) {
    case representation::count_idf:
      return transform_layers<representation::count_idf>(input, out);
    case representation::sqrt_count:
      return transform_layers<representation::sqrt_count>(input, out);
    case representation::binary:
      return transform_layers<representation::binary>(input, out);
    default:
      return transform_layers<representation::count>(input, out);
  }
}

/// Dot products of `features` with every centroid.
[[gnu::always_inline]] inline void multiply_centroids(const float* features, std::size_t cells,
                                                      const float* centroids, std::size_t groups,
                                                      float* dots) {
  const auto* tile = reinterpret_cast<const float_vector*>(centroids);
  for (std::size_t group = 0; group < groups; ++group) {
    float_vector sums[group_slots] = {};
    for (std::size_t cell = 0; cell < cells; cell += lanes) {
      const float_vector value = *reinterpret_cast<const float_vector*>(features + cell);
      // Unrolled, so that the sums stay in registers.
#pragma GCC unroll 8
      for (std::size_t slot = 0; slot < group_slots; ++slot) {
        sums[slot] += value * tile[slot];
      }
      tile += group_slots;
    }
    for (std::size_t slot = 0; slot < group_slots; ++slot) {
      *dots++ = fold(sums[slot]);
    }
  }
}

struct scoring_input {
  representation kind;
  transform_input transform;
  std::size_t cells;
  const float* centroids;
  std::size_t groups;
};

/// Fills `features` and `dots`; returns the squared norm of the features.
float score_portable(const scoring_input& input, float* features, float* dots) {
  const float squares = transform_as(input.kind, input.transform, features);
  multiply_centroids(features, input.cells, input.centroids, input.groups, dots);
  return squares;
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] float score_avx2(const scoring_input& input, float* features, float* dots) {
  const float squares = transform_as(input.kind, input.transform, features);
  multiply_centroids(features, input.cells, input.centroids, input.groups, dots);
  return squares;
}
#else
float score_avx2(const scoring_input& input, float* features, float* dots) {
  return score_portable(input, features, dots);
}
#endif

}  // namespace

instruction_path best_instruction_path() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) {
    return instruction_path::avx2;
  }
#endif
  return instruction_path::portable;
}

void slot_scorer::aligned_delete::operator()(float* memory) const noexcept {
  ::operator delete[](memory, std::align_val_t{alignment});
}

slot_scorer::aligned_floats slot_scorer::allocate(std::size_t count) {
  void* memory = ::operator new[](count * sizeof(float), std::align_val_t{alignment});
  auto* floats = static_cast<float*>(memory);
  std::fill_n(floats, count, 0.0f);
  return aligned_floats(floats);
}

slot_scorer::slot_scorer(const artifact& routing, centroid_set centroids, instruction_path path)
    : kind_(routing.kind),
      path_(path),
      slots_(routing.slots),
      experts_(routing.experts),
      wire_bytes_(std::size_t{routing.layers} * routing.experts * sizeof(std::uint16_t)),
      stride_(round_up(routing.experts, lanes)),
      cells_(routing.mask.size() * stride_),
      weights_(allocate(cells_)),
      features_(allocate(cells_)),
      centroids_(allocate(round_up(slots_, group_slots) * cells_)),
      dots_(allocate(round_up(slots_, group_slots))) {
  for (const std::uint32_t layer : routing.mask) {
    layer_offsets_.push_back(std::size_t{layer} * experts_ * sizeof(std::uint16_t));
  }
  copy_weights(routing);
  copy_centroids(
      centroids == centroid_set::balanced ? routing.centroids : routing.vanilla_centroids,
      experts_);
}

void slot_scorer::copy_weights(const artifact& routing) {
  for (std::size_t i = 0; i < routing.weights.size(); ++i) {
    weights_[i / experts_ * stride_ + i % experts_] = routing.weights[i];
  }
}

void slot_scorer::copy_centroids(const std::vector<float>& centroids, std::uint32_t experts) {
  const std::size_t slot_values = layer_offsets_.size() * experts;
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    const std::size_t slot = i / slot_values;
    const std::size_t cell = i % slot_values / experts * stride_ + i % experts;
    const std::size_t vector = slot / group_slots * (cells_ / lanes) + cell / lanes;
    centroids_[(vector * group_slots + slot % group_slots) * lanes + cell % lanes] = centroids[i];
  }
}

bool slot_scorer::score(std::span<const std::byte> signature, std::span<float> similarities) {
  if (signature.size() != wire_bytes_ || similarities.size() != slots_) {
    throw fit_error("A signature of " + std::to_string(signature.size()) +
                    " bytes does not fit the routing artifact, which is for " +
                    std::to_string(wire_bytes_) + " bytes.");
  }
  const scoring_input input{
      .kind = kind_,
      .transform = {signature.data(), layer_offsets_, experts_, stride_, weights_.get()},
      .cells = cells_,
      .centroids = centroids_.get(),
      .groups = round_up(slots_, group_slots) / group_slots};
  const auto compute = path_ == instruction_path::avx2 ? score_avx2 : score_portable;
  const float squares = compute(input, features_.get(), dots_.get());
  const float scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  for (std::size_t slot = 0; slot < slots_; ++slot) {
    similarities[slot] = dots_[slot] * scale;
  }
  return squares > 0;
}

}  // namespace eldr::fit
