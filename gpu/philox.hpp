#pragma once
/// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy
/// as 1, 2, 3" (SC 2011). Without state: a number depends on key and counter only.

#include <array>
#include <cstdint>

namespace eldr::gpu {

/// 128 random bits of block `counter` under `key`.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// Uniform in [0, 1), a multiple of 2^-53: number `index` of stream `seed`.
constexpr double philox_uniform(std::uint64_t seed, std::uint64_t index) {
  const auto bits =
      philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t word = std::uint64_t{bits[0]} << 32 | bits[1];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace eldr::gpu
