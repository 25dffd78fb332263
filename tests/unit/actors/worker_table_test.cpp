#include "actors/router/worker_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

namespace eldr::actors {
namespace {

attempt_key key(std::uint64_t counter) {
  return {{1, counter}, 1};
}

worker make_worker(const std::string& node, messages::session_id session) {
  worker w;
  w.node = node;
  w.session = session;
  return w;
}

worker_table::report report(std::uint32_t waiting, std::uint32_t running, std::uint64_t processed,
                            std::vector<attempt_key> ended = {}) {
  worker_table::report r;
  r.waiting = waiting;
  r.running = running;
  r.last_processed = processed;
  r.ended = std::move(ended);
  return r;
}

TEST(worker_table, depth_is_what_was_reported_and_what_is_on_its_way) {
  worker_table table;
  table.up(make_worker("d1", 1));
  const auto& d1 = table.workers().at("d1");
  EXPECT_EQ(table.sent("d1", key(1)), 1U);
  EXPECT_EQ(table.sent("d1", key(2)), 2U);
  EXPECT_EQ(d1.depth(), 2U);
  EXPECT_TRUE(table.reported(1, report(0, 1, 1)));
  EXPECT_EQ(d1.depth(), 2U) << "one runs, one is on its way";
  EXPECT_TRUE(table.reported(1, report(3, 2, 2)));
  EXPECT_EQ(d1.depth(), 5U) << "other routers' tasks count too";
}

TEST(worker_table, refuses_reports_that_contradict_what_was_sent) {
  worker_table table;
  table.up(make_worker("d1", 1));
  table.sent("d1", key(1));
  table.sent("d1", key(2));
  EXPECT_FALSE(table.reported(1, report(0, 0, 3))) << "never sent";
  EXPECT_TRUE(table.reported(1, report(0, 2, 2)));
  EXPECT_FALSE(table.reported(1, report(0, 0, 1))) << "going back";
  EXPECT_FALSE(table.reported(9, report(0, 0, 0))) << "no such session";
  EXPECT_EQ(table.workers().at("d1").depth(), 2U) << "refused reports change nothing";
}

TEST(worker_table, a_new_session_starts_at_zero) {
  worker_table table;
  table.up(make_worker("d1", 1));
  table.sent("d1", key(1));
  table.reported(1, report(4, 4, 1));
  table.up(make_worker("d1", 2));
  const auto& d1 = table.workers().at("d1");
  EXPECT_EQ(d1.depth(), 0U);
  EXPECT_FALSE(d1.reported);
  EXPECT_TRUE(d1.in_flight.empty());
  EXPECT_EQ(table.sent("d1", key(2)), 1U);
  EXPECT_FALSE(table.reported(1, report(0, 0, 0))) << "the old session is over";
}

TEST(worker_table, the_end_of_an_old_session_leaves_its_successor) {
  worker_table table;
  table.up(make_worker("d1", 1));
  table.up(make_worker("d1", 2));
  table.down("d1", 1);
  EXPECT_EQ(table.workers().size(), 1U);
  table.down("d1", 2);
  EXPECT_TRUE(table.workers().empty());
}

/// A worker and its wires: tasks travel one way, reports the other, both in order.
struct modelled_worker {
  std::deque<attempt_key> tasks_on_wire;
  std::deque<worker_table::report> reports_on_wire;
  std::vector<attempt_key> held;
  std::vector<attempt_key> ended;
  std::uint64_t processed = 0;
};

/// Random interleavings over several sessions: the depth is exactly what the worker held when it
/// wrote the last report heard, plus the tasks that it had not seen then.
TEST(worker_table, agrees_with_a_model_of_worker_and_wires) {
  std::mt19937 rng(17);
  worker_table table;
  modelled_worker model;
  messages::session_id session = 0;
  std::uint32_t heard_held = 0;
  std::uint64_t heard_processed = 0;
  std::uint64_t sent = 0;
  std::uint64_t next = 1;
  const auto open = [&] {
    table.up(make_worker("d1", ++session));
    model = {};
    heard_held = 0;
    heard_processed = sent = 0;
  };
  open();
  for (int step = 0; step < 20'000; ++step) {
    const auto dice = rng() % 100;
    if (dice < 30) {
      model.tasks_on_wire.push_back(key(next));
      ASSERT_EQ(table.sent("d1", key(next++)), ++sent);
    } else if (dice < 55 && !model.tasks_on_wire.empty()) {
      ++model.processed;
      const bool refuses = rng() % 5 == 0;
      (refuses ? model.ended : model.held).push_back(model.tasks_on_wire.front());
      model.tasks_on_wire.pop_front();
    } else if (dice < 75 && !model.held.empty()) {
      model.ended.push_back(model.held.back());
      model.held.pop_back();
    } else if (dice < 85) {
      const auto held = static_cast<std::uint32_t>(model.held.size());
      model.reports_on_wire.push_back(
          report(held / 2, held - held / 2, model.processed, std::exchange(model.ended, {})));
    } else if (dice < 99 && !model.reports_on_wire.empty()) {
      const auto& r = model.reports_on_wire.front();
      ASSERT_TRUE(table.reported(session, r));
      heard_held = r.waiting + r.running;
      heard_processed = r.last_processed;
      model.reports_on_wire.pop_front();
    } else if (dice == 99) {
      open();
    }
    ASSERT_EQ(table.workers().at("d1").depth(), heard_held + (sent - heard_processed));
  }
  // At rest, once all is ended and heard, nothing is left.
  model.processed += model.tasks_on_wire.size();
  model.ended.insert(model.ended.end(), model.held.begin(), model.held.end());
  model.ended.insert(model.ended.end(), model.tasks_on_wire.begin(), model.tasks_on_wire.end());
  for (const auto& r : model.reports_on_wire) {
    ASSERT_TRUE(table.reported(session, r));
  }
  ASSERT_TRUE(table.reported(session, report(0, 0, model.processed, model.ended)));
  EXPECT_EQ(table.workers().at("d1").depth(), 0U);
  EXPECT_TRUE(table.workers().at("d1").in_flight.empty());
}

}  // namespace
}  // namespace eldr::actors
