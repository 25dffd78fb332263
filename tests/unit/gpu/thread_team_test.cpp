#include "gpu/thread_team.hpp"

#include <gtest/gtest.h>

namespace eldr::gpu {
namespace {

TEST(thread_team, runs_every_rank_once_in_every_phase) {
  for (const std::uint32_t size : {1U, 2U, 3U}) {
    thread_team team(size);
    EXPECT_EQ(team.size(), size);
    std::vector<int> calls(size);  // Not atomic: phases must order what the ranks did before.
    for (int phase = 1; phase <= 100; ++phase) {
      team.run([&](std::uint32_t rank) { ++calls[(rank + phase) % size]; });
      EXPECT_EQ(calls, std::vector<int>(size, phase));
    }
  }
}

TEST(thread_team, may_end_without_having_run) {
  EXPECT_EQ(thread_team(3).size(), 3u);
}

TEST(share_of, covers_everything_once_in_whole_grains) {
  for (const std::uint32_t total : {0U, 1U, 7U, 8U, 64U, 1000U}) {
    for (const std::uint32_t size : {1U, 2U, 3U, 7U}) {
      for (const std::uint32_t grain : {1U, 8U}) {
        std::uint32_t next = 0;
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          const index_range share = share_of(total, rank, size, grain);
          EXPECT_EQ(share.begin, next);
          EXPECT_TRUE(share.end == total || share.end % grain == 0);
          next = share.end;
        }
        EXPECT_EQ(next, total);
      }
    }
  }
}

}  // namespace
}  // namespace eldr::gpu
