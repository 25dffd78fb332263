#pragma once
/// Rotary position embedding: cosines and sines of every position, the same on every machine.

#include <cstdint>
#include <vector>

namespace eldr::gpu {

/// Angle of dimension i at position p: p * theta^(-2i / head_dim), for i < head_dim / 2. Computed
/// in double with functions of our own, since a C library may round its own differently from the
/// next; within 1e-9 of the true values for positions below 2^20.
class rope_table {
 public:
  rope_table(std::uint32_t positions, std::uint32_t head_dim, double theta);
  const float* cos(std::uint32_t position) const { return cos_.data() + position * half_; }
  const float* sin(std::uint32_t position) const { return sin_.data() + position * half_; }
  std::uint32_t half() const { return static_cast<std::uint32_t>(half_); }

 private:
  std::size_t half_;
  std::vector<float> cos_;  ///< [positions][half]
  std::vector<float> sin_;  ///< [positions][half]
};

}  // namespace eldr::gpu
