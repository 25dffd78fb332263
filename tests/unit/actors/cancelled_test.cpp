#include "actors/common/cancelled.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace eldr::actors {
namespace {

attempt_key key(std::uint64_t counter, std::uint32_t number) {
  return {{1, counter}, number};
}

TEST(cancelled_attempts, take_lower_attempts_with_them_and_spare_higher_ones) {
  cancelled_attempts cancelled;
  cancelled.add(key(7, 3));
  EXPECT_TRUE(cancelled.contains(key(7, 1)));
  EXPECT_TRUE(cancelled.contains(key(7, 3)));
  EXPECT_FALSE(cancelled.contains(key(7, 4)));
  EXPECT_FALSE(cancelled.contains(key(8, 1)));
  EXPECT_FALSE(cancelled.contains({{2, 7}, 1})) << "another gateway's request";
}

TEST(cancelled_attempts, a_late_lower_cancel_changes_nothing) {
  cancelled_attempts cancelled;
  cancelled.add(key(7, 3));
  cancelled.add(key(7, 1));
  EXPECT_TRUE(cancelled.contains(key(7, 3)));
  EXPECT_EQ(cancelled.size(), 1U);
}

/// Against a list that forgets its oldest request when it is full.
TEST(cancelled_attempts, agree_with_a_naive_model) {
  constexpr std::size_t entries_max = 8;
  cancelled_attempts cancelled(entries_max);
  std::vector<attempt_key> model;
  std::mt19937 rng(3);
  for (int step = 0; step < 4000; ++step) {
    const auto k = key(rng() % 14, 1 + rng() % 5);
    const auto known = std::find_if(model.begin(), model.end(),
                                    [&](const auto& m) { return m.request == k.request; });
    if (known != model.end()) {
      known->number = std::max(known->number, k.number);
    } else {
      model.push_back(k);
      if (model.size() > entries_max) {
        model.erase(model.begin());
      }
    }
    cancelled.add(k);
    ASSERT_EQ(cancelled.size(), model.size());
    const auto probe = key(rng() % 14, 1 + rng() % 6);
    const bool expected = std::any_of(model.begin(), model.end(), [&](const auto& m) {
      return m.request == probe.request && probe.number <= m.number;
    });
    ASSERT_EQ(cancelled.contains(probe), expected) << "step " << step;
  }
}

}  // namespace
}  // namespace eldr::actors
