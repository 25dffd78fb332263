#include "actors/common/task_ledger.hpp"

#include <gmock/gmock.h>

#include <map>
#include <random>

namespace eldr::actors {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

attempt_key key(std::uint64_t counter) {
  return {{1, counter}, 1};
}

TEST(task_ledger, owes_a_router_a_first_report) {
  task_ledger ledger;
  EXPECT_FALSE(ledger.dirty());
  ledger.router_up(5);
  ASSERT_TRUE(ledger.dirty());
  const auto reports = ledger.take_reports();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].router, 5U);
  EXPECT_EQ(reports[0].last_processed, 0U);
  EXPECT_THAT(reports[0].ended, IsEmpty());
  EXPECT_FALSE(ledger.dirty());
  EXPECT_THAT(ledger.take_reports(), IsEmpty());
}

TEST(task_ledger, tells_each_router_of_its_own_tasks_only) {
  task_ledger ledger;
  ledger.router_up(5);
  ledger.router_up(6);
  ledger.take_reports();
  ledger.processed(5, 1);
  ledger.processed(6, 9);
  ledger.ended(6, key(2));
  const auto reports = ledger.take_reports();
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].last_processed, 1U);
  EXPECT_THAT(reports[0].ended, IsEmpty());
  EXPECT_EQ(reports[1].last_processed, 9U);
  EXPECT_THAT(reports[1].ended, ElementsAre(key(2)));
}

TEST(task_ledger, a_touch_is_told_to_all_and_keeps_the_number) {
  task_ledger ledger;
  ledger.router_up(5);
  ledger.processed(5, 4);
  ledger.take_reports();
  ledger.touch();
  const auto reports = ledger.take_reports();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].last_processed, 4U);
}

TEST(task_ledger, forgets_a_router_with_its_session) {
  task_ledger ledger;
  ledger.router_up(5);
  ledger.processed(5, 4);
  ledger.router_down(5);
  ledger.ended(5, key(1));
  EXPECT_FALSE(ledger.dirty());
  ledger.router_up(6);
  EXPECT_EQ(ledger.take_reports().at(0).last_processed, 0U);
}

/// Whatever the order, each end is reported to its router exactly once, and in order.
TEST(task_ledger, reports_every_end_exactly_once) {
  task_ledger ledger;
  std::map<messages::session_id, std::vector<attempt_key>> happened;
  std::map<messages::session_id, std::vector<attempt_key>> told;
  for (messages::session_id router = 1; router <= 3; ++router) {
    ledger.router_up(router);
  }
  std::mt19937 rng(11);
  const auto collect = [&] {
    for (const auto& r : ledger.take_reports()) {
      told[r.router].insert(told[r.router].end(), r.ended.begin(), r.ended.end());
    }
  };
  for (std::uint64_t step = 0; step < 3000; ++step) {
    if (rng() % 4 == 0) {
      collect();
    } else {
      const messages::session_id router = 1 + rng() % 3;
      ledger.ended(router, key(step));
      happened[router].push_back(key(step));
    }
  }
  collect();
  EXPECT_EQ(told, happened);
}

}  // namespace
}  // namespace eldr::actors
