#include "actors/prefill/lease_table.hpp"

#include <gmock/gmock.h>

#include <random>

namespace eldr::actors {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const attempt_key alice{{1, 1}, 1};
const attempt_key bob{{1, 2}, 1};

TEST(lease_table, a_release_in_time_is_ok_once) {
  lease_table leases;
  const auto id = leases.grant({alice, {3, 4}, 100});
  const auto out = leases.release(id, alice, 99);
  EXPECT_TRUE(out.ok);
  EXPECT_THAT(out.blocks, ElementsAre(3, 4));
  EXPECT_EQ(leases.size(), 0U);
  const auto again = leases.release(id, alice, 99);
  EXPECT_FALSE(again.ok);
  EXPECT_THAT(again.blocks, IsEmpty());
  EXPECT_EQ(leases.expired_total(), 0U);
}

TEST(lease_table, a_release_at_the_deadline_is_late_though_no_timer_has_fired) {
  lease_table leases;
  const auto id = leases.grant({alice, {3, 4}, 100});
  const auto out = leases.release(id, alice, 100);
  EXPECT_FALSE(out.ok);
  EXPECT_THAT(out.blocks, ElementsAre(3, 4)) << "the blocks are to be unpinned all the same";
  EXPECT_EQ(leases.size(), 0U);
  EXPECT_EQ(leases.expired_total(), 1U);
}

TEST(lease_table, another_attempt_cannot_release_a_lease) {
  lease_table leases;
  const auto id = leases.grant({alice, {3}, 100});
  for (const auto& other : {bob, attempt_key{alice.request, 2}, attempt_key{{2, 1}, 1}}) {
    const auto out = leases.release(id, other, 5);
    EXPECT_FALSE(out.ok);
    EXPECT_THAT(out.blocks, IsEmpty());
  }
  EXPECT_TRUE(leases.release(id, alice, 5).ok);
}

TEST(lease_table, expires_what_is_due_and_says_when_the_next_is) {
  lease_table leases;
  EXPECT_EQ(leases.next_deadline_ns(), std::nullopt);
  leases.grant({alice, {1}, 200});
  leases.grant({bob, {2, 3}, 100});
  EXPECT_EQ(leases.next_deadline_ns(), 100);
  EXPECT_THAT(leases.expire(99), IsEmpty());
  EXPECT_THAT(leases.expire(100), ElementsAre(2, 3));
  EXPECT_EQ(leases.next_deadline_ns(), 200);
  EXPECT_EQ(leases.expired_total(), 1U);
}

TEST(lease_table, ends_by_predicate_without_counting_an_expiry) {
  lease_table leases;
  leases.grant({alice, {1}, 200});
  leases.grant({bob, {2}, 200});
  EXPECT_THAT(leases.end_if([](const auto& l) { return l.key == bob; }), ElementsAre(2));
  EXPECT_EQ(leases.size(), 1U);
  EXPECT_EQ(leases.expired_total(), 0U);
}

/// Each granted block comes back exactly once, whatever ends its lease.
TEST(lease_table, gives_every_block_back_exactly_once) {
  lease_table leases;
  std::mt19937 rng(5);
  std::vector<std::uint64_t> ids;
  std::vector<int> given_back;
  std::int64_t now = 0;
  const auto back = [&](const std::vector<gpu::block_id>& blocks) {
    for (auto b : blocks) {
      ++given_back[b];
    }
  };
  const auto key_of = [](std::uint64_t id) { return attempt_key{{1 + id % 3, id}, 1}; };
  for (int step = 0; step < 5000; ++step, ++now) {
    const auto pick = ids.empty() ? 0 : ids[rng() % ids.size()];
    switch (rng() % 8) {
      case 0:
        back(leases.expire(now));
        break;
      case 1:
        back(leases.end_if([&](const auto& l) { return l.key == key_of(pick); }));
        break;
      case 2:
      case 3:
        back(leases.release(pick, key_of(rng() % 2 == 0 ? pick : pick + 1), now).blocks);
        break;
      default: {
        const auto block = static_cast<gpu::block_id>(given_back.size());
        given_back.resize(given_back.size() + 2, 0);
        const auto id = ids.size() + 1;
        ASSERT_EQ(
            leases.grant({key_of(id), {block, block + 1}, now + static_cast<int>(rng() % 50)}), id);
        ids.push_back(id);
      }
    }
  }
  back(leases.expire(now + 100));
  EXPECT_EQ(leases.size(), 0U);
  EXPECT_THAT(given_back, testing::Each(1));
}

}  // namespace
}  // namespace eldr::actors
