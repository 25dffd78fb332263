#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include "fake_context.hpp"

namespace eldr::actors {
namespace {

TEST(deadline_set, asks_for_no_wake_when_there_is_nothing_to_wait_for) {
  test::fake_context ctx({});
  deadline_set deadlines;
  deadlines.add(std::optional<std::int64_t>{});
  deadlines.arm(ctx);
  EXPECT_EQ(ctx.wake_ns, std::nullopt);
}

TEST(deadline_set, asks_for_the_earliest) {
  std::mt19937_64 rng(2);
  for (int round = 0; round < 200; ++round) {
    test::fake_context ctx({});
    deadline_set deadlines;
    std::int64_t earliest = std::numeric_limits<std::int64_t>::max();
    for (auto n = 1 + rng() % 9; n > 0; --n) {
      const auto due = static_cast<std::int64_t>(rng() % 1000) - 500;
      earliest = std::min(earliest, due);
      if (rng() % 2 == 0) {
        deadlines.add(due);
      } else {
        deadlines.add(std::optional(due));
      }
    }
    deadlines.arm(ctx);
    ASSERT_EQ(ctx.wake_ns, earliest);
  }
}

}  // namespace
}  // namespace eldr::actors
