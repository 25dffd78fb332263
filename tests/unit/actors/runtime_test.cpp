#include "actors/common/runtime.hpp"

#include <gmock/gmock.h>
#include <kj/exception.h>

#include <atomic>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>

#include "actor_bench.hpp"
#include "wire_messages.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A core made of one function; tells when it is destroyed.
class function_core final : public core {
 public:
  using handler = std::function<void(context&, event&)>;
  explicit function_core(handler h, std::atomic<int>* alive = nullptr)
      : handler_(std::move(h)), alive_(alive) {
    count(1);
  }
  ~function_core() override { count(-1); }
  void handle(context& ctx, event& e) override { handler_(ctx, e); }

 private:
  void count(int by) {
    if (alive_ != nullptr) {
      *alive_ += by;
    }
  }
  handler handler_;
  std::atomic<int>* alive_;
};

/// A runtime in virtual time.
class driven_runtime : public testing::Test {
 protected:
  void run() {
    while (actors.runnable() > 0) {
      actors.run_one(0);
    }
  }
  void advance_ms(std::int64_t ms) {
    now_ns += ms_to_ns(ms);
    actors.advance(ms_to_ns(ms));
    run();
  }
  actor_ref spawn(function_core::handler h) {
    return actors.spawn("test", std::make_unique<function_core>(std::move(h), &alive));
  }

  std::int64_t now_ns = 0;
  std::atomic<int> alive = 0;
  std::vector<std::string> faults;
  recording_transport net{{}};
  runtime actors{{[this] { return now_ns; }, [] { return std::uint64_t{4}; }, &net,
                  [this](const std::string& actor, const std::string& what) {
                    faults.push_back(actor + ": " + what);
                  }},
                 runtime::mode::driven};
};

TEST_F(driven_runtime, handles_events_in_order_one_a_turn) {
  std::vector<std::uint64_t> seen;
  const auto actor =
      spawn([&](context&, event& e) { seen.push_back(std::get<get_done>(e).ticket); });
  for (std::uint64_t i = 1; i <= 3; ++i) {
    actor->put(get_done{i, {}});
  }
  run();
  EXPECT_THAT(seen, ElementsAre(1, 2, 3));
}

TEST_F(driven_runtime, wakes_at_the_earliest_time_asked_for) {
  std::vector<std::int64_t> woken_ms;
  const auto actor = spawn([&](context& ctx, event& e) {
    if (std::holds_alternative<wake>(e)) {
      woken_ms.push_back(ctx.now_ns() / 1'000'000);
    } else {
      ctx.wake_at(ms_to_ns(9));
      ctx.wake_at(ms_to_ns(5));
      ctx.wake_at(ms_to_ns(7));
    }
  });
  actor->put(drain{});
  run();
  EXPECT_EQ(actors.next_timeout_ns(), ms_to_ns(5));
  for (int ms = 1; ms <= 5; ++ms) {
    advance_ms(1);
  }
  EXPECT_THAT(woken_ms, ElementsAre(5));
}

TEST_F(driven_runtime, malformed_bytes_end_the_session_and_not_the_actor) {
  int handled = 0;
  const auto actor = spawn([&](context&, event&) {
    ++handled;
    KJ_FAIL_REQUIRE("pointer out of bounds");
  });
  auto peer = std::make_shared<messages::peer>();
  peer->session = 6;
  for (int i = 0; i < 2; ++i) {
    actor->put(incoming{std::make_shared<test_frame>(6, make_heartbeat()), peer});
  }
  run();
  EXPECT_EQ(handled, 2);
  EXPECT_TRUE(net.closed.contains(6));
  EXPECT_THAT(faults, IsEmpty());
}

TEST_F(driven_runtime, an_actor_that_throws_is_a_fault_and_ends) {
  int handled = 0;
  const auto actor = spawn([&](context&, event&) {
    ++handled;
    throw std::runtime_error("a bug");
  });
  actor->put(drain{});
  actor->put(drain{});
  run();
  EXPECT_THAT(faults, ElementsAre("test: a bug"));
  EXPECT_EQ(handled, 1);
  EXPECT_EQ(alive, 0);
}

TEST_F(driven_runtime, an_actor_that_quits_takes_no_more) {
  int handled = 0;
  const auto actor = spawn([&](context& ctx, event&) {
    ++handled;
    ctx.quit();
  });
  actor->put(drain{});
  actor->put(drain{});
  run();
  actor->put(drain{});
  run();
  EXPECT_EQ(handled, 1);
  EXPECT_EQ(alive, 0);
}

TEST_F(driven_runtime, after_stop_nothing_starts_and_addresses_lead_nowhere) {
  const auto before = spawn([](context&, event&) {});
  actors.stop();
  EXPECT_EQ(alive, 0);
  const auto after = spawn([](context&, event&) { ADD_FAILURE() << "handled after stop"; });
  before->put(drain{});
  after->put(drain{});
  EXPECT_EQ(alive, 0);
}

/// A runtime on threads.
environment real_environment() {
  return {[] { return std::int64_t{0}; }, [] { return std::uint64_t{4}; }, nullptr, {}};
}

TEST(threaded_runtime, stop_ends_actors_that_are_being_spawned_right_then) {
  std::atomic<int> alive = 0;
  for (int round = 0; round < 20; ++round) {
    runtime actors(real_environment(), runtime::mode::threads, 2);
    std::promise<void> busy;
    const auto parent = actors.spawn(
        "parent", std::make_unique<function_core>(
                      [&, first = true](context& ctx, event&) mutable {
                        const auto child = ctx.spawn("child", std::make_unique<function_core>(
                                                                  [](context&, event&) {}, &alive));
                        child->put(drain{});
                        ctx.self()->put(drain{});
                        if (std::exchange(first, false)) {
                          busy.set_value();
                        }
                      },
                      &alive));
    parent->put(drain{});
    busy.get_future().wait();
    actors.stop();
    ASSERT_EQ(alive, 0);
  }
}

TEST(threaded_runtime, progress_actors_run_where_their_events_are_delivered) {
  runtime actors(real_environment(), runtime::mode::threads, 1);
  std::thread::id inline_thread;
  std::promise<std::thread::id> scheduled;
  const auto short_one =
      actors.spawn("short", std::make_unique<function_core>([&](context&, event&) {
                     inline_thread = std::this_thread::get_id();
                   }),
                   runtime::execution::progress);
  const auto other = actors.spawn("other", std::make_unique<function_core>([&](context&, event&) {
                                    scheduled.set_value(std::this_thread::get_id());
                                  }));
  // Until its first turn an actor belongs to the scheduler: let that be over.
  std::promise<void> started;
  actors
      .spawn("barrier",
             std::make_unique<function_core>([&](context&, event&) { started.set_value(); }))
      ->put(drain{});
  started.get_future().wait();
  actors.deliver([&] {
    short_one->put(drain{});
    other->put(drain{});
  });
  EXPECT_EQ(inline_thread, std::this_thread::get_id());
  EXPECT_NE(scheduled.get_future().get(), std::this_thread::get_id());
}

}  // namespace
}  // namespace eldr::actors::test
