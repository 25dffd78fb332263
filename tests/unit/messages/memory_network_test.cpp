/// The in-memory network: virtual time, faults, determinism.

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/messages/world.hpp"

namespace eldr::messages::test {
namespace {

constexpr std::int64_t ms = 1'000'000;

class memory_network_test : public testing::Test {
 protected:
  memory_world here;
  std::unique_ptr<node> a = here.add("a", {.region_bytes = 4096});
  std::unique_ptr<node> b = here.add("b", {.region_bytes = 4096});

  void open() { ASSERT_TRUE(here.open(*a, *b)); }
  void pass(std::int64_t ns) { here.network.advance_to(here.network.now_ns() + ns); }
};

TEST_F(memory_network_test, time_stands_still_unless_driven) {
  a->net->dial(b->address());
  EXPECT_EQ(here.network.now_ns(), 0);
  const auto due = here.network.next_due_ns();
  ASSERT_TRUE(due.has_value());
  EXPECT_FALSE(here.network.deliver_one());
  EXPECT_GE(here.network.advance_to(*due), 1u);
  EXPECT_EQ(here.network.now_ns(), *due);
  EXPECT_EQ(here.network.advance_to(0), 0u);
  EXPECT_EQ(here.network.now_ns(), *due);
  here.settle();
  EXPECT_EQ(a->seen.opens().size(), 1u);
}

TEST_F(memory_network_test, frames_share_the_senders_arena) {
  open();
  auto message = bulk(1, 100);
  const auto* data = message->root().getSubmit().getTokens().asReader().begin().operator*() == 31u
                         ? message->arena().getSegmentsForOutput()[0].begin()
                         : nullptr;
  b->seen.hold(true);
  a->net->send(a->last_session(), std::move(message));
  here.settle();
  const auto frames = b->seen.release();
  ASSERT_EQ(frames.size(), 1u);
  const auto id = frames[0]->root().getSubmit();
  const auto* first = reinterpret_cast<const std::byte*>(data);
  const auto label = capnp::toAny(id).as<capnp::AnyStruct>().getDataSection();
  EXPECT_GT(reinterpret_cast<const std::byte*>(label.begin()), first);
  EXPECT_LT(reinterpret_cast<const std::byte*>(label.begin()), first + frames[0]->bytes());
}

TEST_F(memory_network_test, a_killed_peer_is_noticed_after_the_detection_delay) {
  open();
  const auto at = here.network.now_ns();
  here.network.kill("b");
  EXPECT_TRUE(a->seen.ends().empty());
  ASSERT_TRUE(here.run_until([&] { return !a->seen.ends().empty(); }));
  EXPECT_GE(here.network.now_ns() - at, 1 * ms);
  EXPECT_LE(here.network.now_ns() - at, 10 * ms);
  EXPECT_EQ(a->seen.ends()[0].reason, end_reason::closed_by_peer);
  EXPECT_EQ(b->net->send(b->last_session(), bulk(1)), send_result::no_session);
  here.settle();
  EXPECT_TRUE(b->seen.ends().empty());  // The dead hear nothing.
}

TEST_F(memory_network_test, what_a_killed_node_had_sent_may_arrive_and_in_order) {
  bool some = false;
  bool not_all = false;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    network_options options;
    options.seed = seed;
    memory_world place(options);
    const auto x = place.add("x");
    const auto y = place.add("y");
    ASSERT_TRUE(place.open(*x, *y));
    for (std::uint64_t i = 1; i <= 10; ++i) {
      x->net->send(x->last_session(), bulk(i));
    }
    place.network.kill("x");
    place.settle();
    const auto arrived = y->seen.arrivals();
    for (std::size_t i = 0; i < arrived.size(); ++i) {
      EXPECT_EQ(arrived[i].number, i + 1);
    }
    some |= !arrived.empty();
    not_all |= arrived.size() < 10;
    EXPECT_EQ(y->seen.ends().size(), 1u);
  }
  EXPECT_TRUE(some);
  EXPECT_TRUE(not_all);
}

TEST_F(memory_network_test, destroying_a_transport_is_the_death_of_its_process) {
  open();
  std::vector<std::byte> local(4096, std::byte{1});
  int answers = 0;
  a->net->get(a->last_session(), 0, {{0, local.data(), 4096}}, [&](get_status status) {
    EXPECT_EQ(status, get_status::failed);
    ++answers;
  });
  b->net.reset();
  b.reset();
  here.settle();
  EXPECT_EQ(answers, 1);
  ASSERT_EQ(a->seen.ends().size(), 1u);
  EXPECT_EQ(a->seen.ends()[0].reason, end_reason::closed_by_peer);
}

TEST_F(memory_network_test, a_dead_puller_is_not_written_to) {
  open();
  b->region[5] = std::byte{9};
  auto local = std::make_unique<std::vector<std::byte>>(4096);
  a->net->get(a->last_session(), 0, {{0, local->data(), 4096}}, [](get_status) { FAIL(); });
  here.network.kill("a");
  local.reset();  // The sanitizer would see a late write.
  here.settle();
  EXPECT_EQ(b->seen.ends().size(), 1u);
}

TEST_F(memory_network_test, a_node_may_attach_again_after_its_death) {
  open();
  here.network.kill("b");
  const auto address = b->address();
  const auto again = here.add("b");
  ASSERT_TRUE(here.open(*again, *a));
  EXPECT_NE(a->seen.opens()[1].id.incarnation, a->seen.opens()[0].id.incarnation);
  here.settle();
  // Both ways of learning of the end lead to one end only.
  EXPECT_EQ(a->seen.ends().size(), 1u);
  EXPECT_TRUE(a->seen.violations().empty());
  a->net->dial(address);
  here.settle();
  EXPECT_EQ(a->seen.dial_errors().size(), 1u);
}

TEST_F(memory_network_test, attaching_a_living_name_is_refused) {
  identity id;
  id.node = "a";
  id.incarnation = 5;
  EXPECT_THROW(here.network.attach(id), std::runtime_error);
}

TEST_F(memory_network_test, frames_to_a_frozen_node_wait) {
  open();
  here.network.freeze("b");
  a->net->send(a->last_session(), bulk(1));
  a->net->send(a->last_session(), bulk(2));
  EXPECT_FALSE(here.network.next_due_ns().has_value());
  pass(5000 * ms);
  EXPECT_EQ(b->seen.count(), 0u);
  EXPECT_TRUE(a->seen.ends().empty());
  here.network.thaw("b");
  here.settle();
  ASSERT_EQ(b->seen.count(), 2u);
  EXPECT_EQ(b->seen.arrivals()[0].number, 1u);
}

TEST_F(memory_network_test, what_a_frozen_node_had_sent_arrives) {
  open();
  b->net->send(b->last_session(), bulk(1));
  here.network.freeze("b");
  here.settle();
  EXPECT_EQ(a->seen.count(), 1u);
}

TEST_F(memory_network_test, reads_of_and_by_a_frozen_node_wait) {
  open();
  for (const std::string frozen : {"a", "b"}) {
    std::vector<std::byte> local(16);
    int answers = 0;
    here.network.freeze(frozen);
    a->net->get(a->last_session(), 0, {{0, local.data(), 16}}, [&](get_status status) {
      EXPECT_EQ(status, get_status::ok);
      ++answers;
    });
    here.settle();
    EXPECT_EQ(answers, 0);
    b->region[3] = std::byte{42};  // Bytes are those of the moment of delivery.
    here.network.thaw(frozen);
    here.settle();
    EXPECT_EQ(answers, 1);
    EXPECT_EQ(local[3], std::byte{42});
    b->region[3] = std::byte{0};
  }
}

TEST_F(memory_network_test, a_dial_to_a_frozen_node_waits_and_then_fails) {
  here.network.freeze("b");
  a->net->dial(b->address());
  pass(100 * ms);
  here.network.thaw("b");
  here.settle();
  EXPECT_EQ(a->seen.opens().size(), 1u);
  here.network.freeze("b");
  a->net->dial(b->address());
  pass(3000 * ms);
  EXPECT_EQ(a->seen.dial_errors().size(), 1u);
  here.network.thaw("b");
  here.settle();
  EXPECT_EQ(a->seen.opens().size(), 1u);
  EXPECT_TRUE(a->seen.ends().empty());  // An abandoned dial replaces nothing.
}

TEST_F(memory_network_test, a_partition_holds_everything_until_it_heals) {
  open();
  a->net->send(a->last_session(), bulk(1));
  here.network.partition("b", "a");
  a->net->send(a->last_session(), bulk(2));
  b->net->send(b->last_session(), reserved(3));
  pass(60'000 * ms);
  EXPECT_EQ(a->seen.count() + b->seen.count(), 0u);
  EXPECT_TRUE(a->seen.ends().empty() && b->seen.ends().empty());
  a->net->close(a->last_session(), "gave up");
  pass(1000 * ms);
  EXPECT_EQ(a->seen.ends().size(), 1u);
  EXPECT_TRUE(b->seen.ends().empty());
  here.network.heal("a", "b");
  here.settle();
  ASSERT_EQ(b->seen.ends().size(), 1u);
  EXPECT_EQ(b->seen.ends()[0].reason, end_reason::closed_by_peer);
  EXPECT_EQ(a->seen.count(), 0u);  // Frames of a session that is over go nowhere.
}

TEST_F(memory_network_test, a_partition_touches_only_its_pair) {
  const auto c = here.add("c");
  open();
  ASSERT_TRUE(here.open(*c, *b));
  here.network.partition("a", "b");
  c->net->send(c->last_session(), bulk(1));
  here.settle();
  EXPECT_EQ(b->seen.count(), 1u);
}

TEST_F(memory_network_test, a_dial_across_a_partition_times_out) {
  here.network.partition("a", "b");
  a->net->dial(b->address());
  pass(1999 * ms);
  EXPECT_TRUE(a->seen.dial_errors().empty());
  pass(2 * ms);
  EXPECT_EQ(a->seen.dial_errors().size(), 1u);
  here.network.heal("a", "b");
  here.settle();
  EXPECT_TRUE(a->seen.opens().empty());
  EXPECT_TRUE(b->seen.opens().empty());
}

TEST_F(memory_network_test, a_dial_cut_off_half_way_leaves_no_session) {
  a->net->dial(b->address());
  ASSERT_TRUE(here.run_until([&] { return !b->seen.opens().empty(); }));
  here.network.partition("a", "b");
  pass(3000 * ms);
  EXPECT_EQ(a->seen.dial_errors().size(), 1u);
  here.network.heal("a", "b");
  here.settle();
  EXPECT_TRUE(a->seen.opens().empty());
  EXPECT_EQ(b->seen.ends().size(), 1u);
}

TEST_F(memory_network_test, a_dropped_connection_ends_at_both_ends_at_different_moments) {
  open();
  here.network.drop("a", "b");
  ASSERT_TRUE(here.run_until([&] { return !a->seen.ends().empty() || !b->seen.ends().empty(); }));
  EXPECT_EQ(a->seen.ends().size() + b->seen.ends().size(), 1u);
  here.settle();
  ASSERT_EQ(a->seen.ends().size(), 1u);
  ASSERT_EQ(b->seen.ends().size(), 1u);
  EXPECT_EQ(a->seen.ends()[0].reason, end_reason::transport_error);
  EXPECT_EQ(b->seen.ends()[0].reason, end_reason::transport_error);
  ASSERT_TRUE(here.open(*a, *b));
}

TEST_F(memory_network_test, corruption_flips_one_byte_of_one_read) {
  open();
  std::vector<std::byte> local(4096);
  const auto differing = [&] {
    int answers = 0;
    std::ranges::fill(local, std::byte{0});
    a->net->get(a->last_session(), 0, {{0, local.data(), 2048}, {2048, local.data() + 2048, 2048}},
                [&](get_status status) {
                  EXPECT_EQ(status, get_status::ok);
                  ++answers;
                });
    here.settle();
    EXPECT_EQ(answers, 1);
    return std::ranges::count_if(local, [](std::byte x) { return x != std::byte{0}; });
  };
  here.network.corrupt_next_get("a");
  EXPECT_EQ(differing(), 1);
  EXPECT_EQ(differing(), 0);
}

TEST_F(memory_network_test, faults_on_unknown_names_do_nothing) {
  here.network.kill("nobody");
  here.network.freeze("nobody");
  here.network.thaw("nobody");
  here.network.drop("nobody", "a");
  here.network.drop("a", "nobody");
  here.network.corrupt_next_get("nobody");
  open();
}

TEST_F(memory_network_test, stop_from_a_callback_is_refused) {
  open();
  bool refused = false;
  b->seen.on_frame([&](const frame_ptr&) {
    EXPECT_THROW(b->net->stop(), std::logic_error);
    refused = true;
  });
  a->net->send(a->last_session(), bulk(1));
  here.settle();
  EXPECT_TRUE(refused);
}

/// A busy little cluster under random faults; returns the hash of what happened.
std::uint64_t storm(std::uint64_t seed) {
  network_options options;
  options.seed = seed;
  options.limits.credit_frames = 8;
  memory_world here(options);
  std::mt19937_64 random(seed * 77);
  std::vector<std::unique_ptr<node>> nodes;
  std::vector<std::unique_ptr<node>> dead;
  std::vector<std::byte> local(4096);
  for (int i = 0; i < 4; ++i) {
    nodes.push_back(here.add("n" + std::to_string(i), {.region_bytes = 4096}));
  }
  for (int step = 0; step < 400; ++step) {
    auto& from = *nodes[random() % 4];
    auto& to = *nodes[random() % 4];
    const auto& name = to.net->self().node;
    const auto opens = from.seen.opens();
    const auto session = opens.empty() ? 0 : opens[random() % opens.size()].session;
    switch (random() % 16) {
      case 0:
      case 1:
        from.net->dial(to.address());
        break;
      case 2:
        here.network.drop(from.net->self().node, name);
        break;
      case 3:
        here.network.freeze(name);
        break;
      case 4:
      case 5:
        here.network.thaw(name);
        break;
      case 6:
        here.network.partition(from.net->self().node, name);
        break;
      case 7:
      case 8:
        here.network.heal(from.net->self().node, name);
        break;
      case 9:
        from.net->close(session, "storm");
        break;
      case 10:
        from.net->get(session, 0, {{0, local.data(), 100}, {7, local.data() + 200, 50}},
                      [](get_status) {});
        break;
      case 11:
        if (random() % 4 == 0) {
          auto& slot = nodes[random() % 4];
          const auto killed = slot->net->self().node;
          if (random() % 2 == 0) {
            here.network.kill(killed);
          } else {
            slot->net.reset();
          }
          dead.push_back(std::move(slot));
          slot = here.add(killed, {.region_bytes = 4096});
        }
        break;
      default:
        from.net->send(session, random() % 4 == 0 ? reserved(1) : bulk(step));
        break;
    }
    here.network.advance_to(here.network.now_ns() + static_cast<std::int64_t>(random() % ms));
  }
  for (int i = 0; i < 4; ++i) {
    here.network.thaw("n" + std::to_string(i));
    for (int j = 0; j < 4; ++j) {
      here.network.heal("n" + std::to_string(i), "n" + std::to_string(j));
    }
  }
  here.network.advance_to(here.network.now_ns() + 10'000 * ms);
  EXPECT_FALSE(here.network.next_due_ns().has_value());  // It comes to rest.
  for (const auto& each : nodes) {
    EXPECT_TRUE(each->seen.violations().empty());
    EXPECT_EQ(each->seen.opens().size() - each->seen.ends().size(),
              each->net->counters().sessions_open);
  }
  return here.network.history_hash();
}

TEST(memory_network_determinism, equal_seeds_give_equal_histories) {
  std::vector<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const auto hash = storm(seed);
    EXPECT_EQ(hash, storm(seed)) << "seed " << seed;
    hashes.push_back(hash);
  }
  std::ranges::sort(hashes);
  EXPECT_EQ(std::ranges::adjacent_find(hashes), hashes.end());
}

TEST(memory_network_determinism, at_rest_every_session_is_open_at_both_ends_or_at_none) {
  memory_world here;
  const auto a = here.add("a");
  const auto b = here.add("b");
  for (int i = 0; i < 5; ++i) {
    a->net->dial(b->address());  // All at once: each replaces the one before.
  }
  here.settle();
  EXPECT_EQ(a->net->counters().sessions_open, 1u);
  EXPECT_EQ(b->net->counters().sessions_open, 1u);
  EXPECT_EQ(a->net->send(a->last_session(), bulk(1)), send_result::queued);
  here.settle();
  EXPECT_EQ(b->seen.count(), 1u);
}

}  // namespace
}  // namespace eldr::messages::test
