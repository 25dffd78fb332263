#pragma once
/// The arithmetic of the union policy over all (layer, expert) cells. Every sum runs in eight fixed
/// lanes, so the vector and the plain build give the same bits.

#include <cstddef>
#include <cstdint>
#include <span>

namespace eldr::actors::union_kernels {

/// p = clip(m f + (1 - m) mean, 1e-4, 0.98), f = count / tokens, counts uint16 as on the wire.
void blend(std::span<const std::byte> counts, float tokens, float m, std::span<const float> mean,
           std::span<float> p);

/// mean += rate (count / tokens - mean).
void update_mean(std::span<const std::byte> counts, float tokens, float rate,
                 std::span<float> mean);

/// increment = round(-2^16 ln(1 - p)).
void increments(std::span<const float> p, std::span<std::int32_t> increment);

/// sum += sign * increment; free = exp(-sum / 2^16), the probability that nobody needs the expert.
/// Returns the sum of 1 - free: the expected number of distinct experts.
float apply(std::span<const std::int32_t> increment, int sign, std::span<std::int64_t> sum,
            std::span<float> free);

/// Sum of p * free: what a request with p would add to the expected union.
float growth(std::span<const float> p, std::span<const float> free);

}  // namespace eldr::actors::union_kernels
