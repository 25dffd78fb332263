#include "gpu/rope_table.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace eldr::gpu {
namespace {

TEST(rope_table, holds_cosines_and_sines_of_the_angles) {
  for (const double theta : {10'000.0, 1'000'000.0, 500.5}) {
    const std::uint32_t head_dim = 32;
    const rope_table table(3000, head_dim, theta);
    ASSERT_EQ(table.half(), 16u);
    for (std::uint32_t position = 0; position < 3000; position += 7) {
      for (std::uint32_t i = 0; i < 16; ++i) {
        const double angle = position * std::pow(theta, -2.0 * i / head_dim);
        ASSERT_NEAR(table.cos(position)[i], std::cos(angle), 6.1e-8) << position << ' ' << i;
        ASSERT_NEAR(table.sin(position)[i], std::sin(angle), 6.1e-8) << position << ' ' << i;
      }
    }
  }
}

TEST(rope_table, stays_accurate_at_far_positions) {
  const rope_table table(65'536, 2, 10'000);
  for (std::uint32_t position = 60'000; position < 65'536; ++position) {
    ASSERT_NEAR(table.cos(position)[0], std::cos(static_cast<double>(position)), 6.1e-8);
    ASSERT_NEAR(table.sin(position)[0], std::sin(static_cast<double>(position)), 6.1e-8);
  }
}

}  // namespace
}  // namespace eldr::gpu
