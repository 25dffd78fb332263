/// What every transport promises (messages/transport.hpp), checked on each of them.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/unit/messages/contract_worlds.hpp"
#include "tests/unit/messages/world.hpp"

namespace eldr::messages::test {
namespace {

class contract : public testing::TestWithParam<world_kind> {
 protected:
  void make_world(const transport_limits& limits = {}) {
    nodes_.clear();
    world_ = make_contract_world(GetParam(), limits);
  }
  node& add(const std::string& name, node_options options = {}) {
    if (!world_) {
      make_world();
    }
    nodes_.push_back(world_->add(name, std::move(options)));
    return *nodes_.back();
  }
  bool run_until(const std::function<bool()>& condition, int budget_ms = 10'000) {
    return world_->run_until(condition, budget_ms);
  }
  world& here() { return *world_; }
  /// Ends a node as its owner would: the object goes without stop() in between.
  void destroy(node& which) { which.net.reset(); }

  void TearDown() override {
    for (auto& each : nodes_) {
      if (each->net) {
        each->net->stop();
      }
      EXPECT_TRUE(each->seen.violations().empty()) << each->seen.violations().front();
      EXPECT_EQ(each->seen.opens().size(), each->seen.ends().size());
    }
  }

  std::unique_ptr<world> world_;
  std::vector<std::unique_ptr<node>> nodes_;
};

void fill(std::span<std::byte> memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i + 8 <= memory.size(); i += 8) {
    const auto word = random();
    std::memcpy(memory.data() + i, &word, 8);
  }
}

std::vector<std::uint64_t> numbers(const std::vector<recorder::arrival>& arrivals, bool of_bulk) {
  std::vector<std::uint64_t> result;
  for (const auto& each : arrivals) {
    if (each.bulk == of_bulk) {
      result.push_back(each.number);
    }
  }
  return result;
}

std::vector<std::uint64_t> one_to(std::uint64_t last) {
  std::vector<std::uint64_t> result(last);
  std::iota(result.begin(), result.end(), 1);
  return result;
}

// --- sessions -----------------------------------------------------------------------------------

TEST_P(contract, opening_tells_both_ends_who_the_other_is) {
  auto& a = add("a", {.region_bytes = 4096});
  auto& b = add("b", {.region_bytes = 8192});
  ASSERT_TRUE(here().open(a, b));
  const auto at_a = a.seen.opens().front();
  const auto at_b = b.seen.opens().front();
  EXPECT_NE(at_a.session, 0u);
  EXPECT_EQ(at_a.id.node, "b");
  EXPECT_EQ(at_a.id.role, "decode");
  EXPECT_EQ(at_a.id.incarnation, b.net->self().incarnation);
  EXPECT_EQ(at_a.id.fingerprint, 7u);
  EXPECT_EQ(at_a.id.layout, 9u);
  EXPECT_EQ(at_a.id.address, b.address());
  ASSERT_EQ(at_a.regions.size(), 1u);
  EXPECT_EQ(at_a.regions[0].id, 0u);
  EXPECT_EQ(at_a.regions[0].bytes, 8192u);
  EXPECT_EQ(at_b.id.node, "a");
  EXPECT_EQ(at_b.regions.at(0).bytes, 4096u);
  EXPECT_EQ(a.net->counters().sessions_open, 1u);
}

TEST_P(contract, a_node_without_address_can_dial) {
  auto& client = add("client", {.listens = false});
  auto& server = add("server");
  ASSERT_TRUE(here().open(client, server));
  EXPECT_EQ(server.seen.opens().front().id.address, "");
}

TEST_P(contract, close_is_seen_once_at_both_ends) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  a.net->close(a.last_session(), "had enough");
  a.net->close(a.last_session(), "twice does no harm");
  a.net->close(9999, "nor does an unknown session");
  ASSERT_TRUE(run_until([&] { return !a.seen.ends().empty() && !b.seen.ends().empty(); }));
  here().settle();
  ASSERT_EQ(a.seen.ends().size(), 1u);
  ASSERT_EQ(b.seen.ends().size(), 1u);
  EXPECT_EQ(a.seen.ends()[0].reason, end_reason::closed_here);
  EXPECT_EQ(a.seen.ends()[0].detail, "had enough");
  EXPECT_EQ(b.seen.ends()[0].reason, end_reason::closed_by_peer);
  EXPECT_EQ(a.net->send(a.last_session(), bulk(1)), send_result::no_session);
  EXPECT_EQ(a.net->counters().sessions_open, 0u);
}

TEST_P(contract, sends_to_no_session_are_refused) {
  auto& a = add("a");
  EXPECT_EQ(a.net->send(0, bulk(1)), send_result::no_session);
  EXPECT_EQ(a.net->send(77, reserved(1)), send_result::no_session);
}

TEST_P(contract, a_new_session_after_the_old_one_works) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  const auto first = a.last_session();
  b.net->close(b.last_session(), "again");
  ASSERT_TRUE(run_until([&] { return !a.seen.ends().empty() && !b.seen.ends().empty(); }));
  ASSERT_TRUE(here().open(a, b));
  EXPECT_NE(a.last_session(), first);
  EXPECT_EQ(a.net->send(a.last_session(), bulk(5)), send_result::queued);
  ASSERT_TRUE(run_until([&] { return b.seen.count() == 1; }));
}

TEST_P(contract, a_second_session_replaces_the_first) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  const auto first = a.last_session();
  ASSERT_TRUE(here().open(a, b));
  ASSERT_TRUE(run_until([&] { return !a.seen.ends().empty() && !b.seen.ends().empty(); }));
  for (const auto* side : {&a, &b}) {
    ASSERT_EQ(side->seen.ends().size(), 1u);
    EXPECT_EQ(side->seen.ends()[0].reason, end_reason::replaced) << side->net->self().node;
    EXPECT_EQ(side->seen.ends()[0].who.session, side->seen.opens()[0].session);
  }
  EXPECT_EQ(a.net->send(first, bulk(1)), send_result::no_session);
  EXPECT_EQ(a.net->send(a.last_session(), bulk(2)), send_result::queued);
  ASSERT_TRUE(run_until([&] { return b.seen.count() == 1; }));
}

TEST_P(contract, a_restarted_peer_gets_a_session_of_its_own) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(b, a));
  const auto old = a.seen.opens()[0].id.incarnation;
  destroy(b);
  ASSERT_TRUE(run_until([&] { return a.seen.ends().size() == 1; }));
  EXPECT_EQ(a.seen.ends()[0].reason, end_reason::closed_by_peer);
  auto& again = add("b");
  ASSERT_TRUE(here().open(again, a));
  EXPECT_NE(a.seen.opens()[1].id.incarnation, old);
  nodes_.erase(nodes_.begin() + 1);  // The dead one saw no end of its session.
}

TEST_P(contract, a_wrong_token_is_refused) {
  auto& a = add("a", {.token = "guessed"});
  auto& b = add("b");
  a.net->dial(b.address());
  ASSERT_TRUE(run_until([&] { return !a.seen.dial_errors().empty(); }));
  EXPECT_NE(a.seen.dial_errors()[0].find("token"), std::string::npos) << a.seen.dial_errors()[0];
  b.net->dial(a.address());
  ASSERT_TRUE(run_until([&] { return !b.seen.dial_errors().empty(); }));
  here().settle();
  EXPECT_TRUE(a.seen.opens().empty());
  EXPECT_TRUE(b.seen.opens().empty());
  EXPECT_EQ(b.net->counters().handshakes_refused, 1u);
}

TEST_P(contract, dialling_nobody_fails) {
  auto& a = add("a");
  auto& b = add("b");
  const auto address = b.address();
  b.net->stop();
  a.net->dial(address);
  ASSERT_TRUE(run_until([&] { return !a.seen.dial_errors().empty(); }));
  EXPECT_NE(a.seen.dial_errors()[0].find(address), std::string::npos) << a.seen.dial_errors()[0];
}

TEST_P(contract, a_node_does_not_open_a_session_with_itself) {
  auto& a = add("a");
  a.net->dial(a.address());
  ASSERT_TRUE(run_until([&] { return !a.seen.dial_errors().empty(); }));
  EXPECT_TRUE(a.seen.opens().empty());
}

TEST_P(contract, an_address_in_use_is_refused_with_a_sentence) {
  auto& a = add("a");
  identity id = a.net->self();
  id.node = "b";
  const auto other = here().make(id, "test");
  recorder seen;
  try {
    other->start(seen);
    FAIL() << "two nodes listen at " << id.address;
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find(id.address), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("in use"), std::string::npos) << error.what();
  }
}

TEST_P(contract, methods_may_be_called_from_callbacks) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  b.seen.on_frame([&](const frame_ptr& frame) {
    const auto number = number_of(frame->root());
    if (number < 10) {
      b.net->send(frame->session(), bulk(number));
    } else {
      b.net->close(frame->session(), "ten is enough");
    }
  });
  a.seen.on_frame([&](const frame_ptr& frame) {
    a.net->send(frame->session(), bulk(number_of(frame->root()) + 1));
  });
  a.net->send(a.last_session(), bulk(1));
  ASSERT_TRUE(run_until([&] { return !a.seen.ends().empty() && !b.seen.ends().empty(); }));
  EXPECT_EQ(numbers(b.seen.arrivals(), true), one_to(10));
  EXPECT_EQ(numbers(a.seen.arrivals(), true), one_to(9));
}

// --- frames -------------------------------------------------------------------------------------

TEST_P(contract, frames_arrive_in_order_and_once_in_each_class) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  constexpr std::uint64_t count = 3000;
  for (std::uint64_t i = 1; i <= count; ++i) {
    ASSERT_EQ(a.net->send(a.last_session(), bulk(i, i % 97)), send_result::queued);
    ASSERT_EQ(b.net->send(b.last_session(), bulk(i)), send_result::queued);
    if (i <= 1000) {
      ASSERT_EQ(a.net->send(a.last_session(), reserved(i)), send_result::queued);
    }
  }
  ASSERT_TRUE(run_until([&] { return b.seen.count() >= count + 1000 && a.seen.count() >= count; }));
  here().settle();
  EXPECT_EQ(numbers(b.seen.arrivals(), true), one_to(count));
  EXPECT_EQ(numbers(b.seen.arrivals(), false), one_to(1000));
  EXPECT_EQ(numbers(a.seen.arrivals(), true), one_to(count));
  EXPECT_EQ(a.net->counters().frames_received, count);
  EXPECT_EQ(b.net->counters().bytes_received, a.net->counters().bytes_sent);
}

TEST_P(contract, frames_are_read_in_place_whole_and_aligned) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  std::atomic<int> good{0};
  b.seen.on_frame([&](const frame_ptr& frame) {
    const auto submit = frame->root().getSubmit();
    const auto ticket = submit.getAttempt().getRequest().getCounter();
    const auto tokens = submit.getTokens();
    bool same = tokens.size() == 2 * ticket;
    for (std::uint32_t i = 0; same && i < tokens.size(); ++i) {
      same = tokens[i] == static_cast<std::uint32_t>(ticket * 31 + i);
    }
    good += same ? 1 : 0;
  });
  // One segment; and many, each smaller than the message.
  const std::vector<std::uint32_t> sizes = {0, 1, 100, 1500, 12'288 / 8, 40'000, 120'000};
  for (const auto words : sizes) {
    ASSERT_EQ(a.net->send(a.last_session(), bulk(words, words)), send_result::queued);
    auto pieces = bulk(words, words, 16);
    ASSERT_EQ(a.net->send(a.last_session(), std::move(pieces)), send_result::queued);
  }
  EXPECT_TRUE(run_until([&] { return good == static_cast<int>(2 * sizes.size()); }, 3000));
}

TEST_P(contract, a_message_of_many_segments_keeps_its_shape) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  auto message = std::make_unique<outgoing>(8);
  auto ended = message->root().initQueueDepth().initEnded(500);
  for (std::uint32_t i = 0; i < ended.size(); ++i) {
    ended[i].initRequest().setCounter(i);
  }
  ASSERT_GT(message->arena().getSegmentsForOutput().size(), 3u);
  std::atomic<std::uint64_t> sum{0};
  b.seen.on_frame([&](const frame_ptr& frame) {
    for (const auto attempt : frame->root().getQueueDepth().getEnded()) {
      sum += attempt.getRequest().getCounter();
    }
  });
  b.seen.hold(true);
  a.net->send(a.last_session(), std::move(message));
  ASSERT_TRUE(run_until([&] { return sum == 500 * 499 / 2; }));
}

TEST_P(contract, credits_bound_what_a_slow_receiver_is_sent) {
  transport_limits limits;
  limits.credit_frames = 16;
  make_world(limits);
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  b.seen.hold(true);
  for (std::uint64_t i = 1; i <= 100; ++i) {
    ASSERT_EQ(a.net->send(a.last_session(), bulk(i)), send_result::queued);
  }
  ASSERT_TRUE(run_until([&] { return b.seen.held() == 16; }));
  here().settle();
  EXPECT_EQ(b.seen.held(), 16u);
  EXPECT_GT(a.net->counters().credit_stalls, 0u);
  // What the receiver lets go of comes back as room for more, with no other traffic.
  std::size_t taken = 0;
  while (taken < 100) {
    ASSERT_TRUE(run_until([&] { return b.seen.held() > 0; }));
    taken += b.seen.release().size();
  }
  EXPECT_EQ(numbers(b.seen.arrivals(), true), one_to(100));
}

TEST_P(contract, reserved_traffic_overtakes_bulk_that_waits_for_credit) {
  transport_limits limits;
  limits.credit_frames = 4;
  make_world(limits);
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  b.seen.hold(true);
  for (std::uint64_t i = 1; i <= 50; ++i) {
    ASSERT_EQ(a.net->send(a.last_session(), bulk(i)), send_result::queued);
  }
  for (std::uint64_t i = 1; i <= 50; ++i) {
    ASSERT_EQ(a.net->send(a.last_session(), reserved(i)), send_result::queued);
  }
  ASSERT_TRUE(run_until([&] { return b.seen.count() == 54; }));
  EXPECT_EQ(numbers(b.seen.arrivals(), false), one_to(50));
  EXPECT_EQ(numbers(b.seen.arrivals(), true), one_to(4));
  b.seen.release();
}

TEST_P(contract, a_full_queue_ends_the_session) {
  transport_limits limits;
  limits.credit_frames = 4;
  limits.queue_frames_max = 8;
  make_world(limits);
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  b.seen.hold(true);
  auto result = send_result::queued;
  for (std::uint64_t i = 1; i <= 1000 && result == send_result::queued; ++i) {
    result = a.net->send(a.last_session(), bulk(i));
  }
  EXPECT_EQ(result, send_result::overflow);
  EXPECT_EQ(a.net->send(a.last_session(), bulk(1)), send_result::no_session);
  ASSERT_TRUE(run_until([&] { return !a.seen.ends().empty() && !b.seen.ends().empty(); }));
  EXPECT_EQ(a.seen.ends()[0].reason, end_reason::overflow);
  EXPECT_EQ(b.seen.ends()[0].reason, end_reason::closed_by_peer);
  b.seen.release();
}

TEST_P(contract, bytes_in_the_queue_are_bounded_too) {
  transport_limits limits;
  limits.credit_frames = 4;
  limits.queue_bytes_max = 64'000;
  make_world(limits);
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  b.seen.hold(true);
  auto result = send_result::queued;
  int sent = 0;
  for (; sent < 1000 && result == send_result::queued; ++sent) {
    result = a.net->send(a.last_session(), bulk(1, 1000));
  }
  EXPECT_EQ(result, send_result::overflow);
  EXPECT_GE(sent, 7);
  ASSERT_TRUE(run_until([&] { return !a.seen.ends().empty() && !b.seen.ends().empty(); }));
  EXPECT_EQ(a.seen.ends()[0].reason, end_reason::overflow);
  b.seen.release();
}

TEST_P(contract, a_client_that_does_not_read_is_cut_off_without_touching_others) {
  transport_limits limits;
  limits.credit_frames = 4;
  limits.client_queue_bytes_max = 64'000;
  make_world(limits);
  auto& a = add("a");
  node_options as_client;
  as_client.role = "client";
  as_client.listens = false;
  auto& client = add("client-1", as_client);
  auto& other = add("z");
  ASSERT_TRUE(here().open(client, a));
  const auto to_client = a.last_session();
  ASSERT_TRUE(here().open(a, other));
  const auto to_other = a.last_session();
  client.seen.hold(true);
  other.seen.hold(true);
  auto result = send_result::queued;
  for (int i = 0; i < 100 && result == send_result::queued; ++i) {
    ASSERT_EQ(a.net->send(to_other, bulk(1, 1000)), send_result::queued);
    result = a.net->send(to_client, bulk(1, 1000));
  }
  EXPECT_EQ(result, send_result::overflow);
  ASSERT_TRUE(run_until([&] { return !client.seen.ends().empty(); }));
  EXPECT_EQ(a.seen.ends().size(), 1U);
  EXPECT_EQ(a.net->send(to_other, bulk(2)), send_result::queued);
  client.seen.release();
  other.seen.release();
}

TEST_P(contract, a_message_that_is_too_large_is_refused_loudly) {
  transport_limits limits;
  limits.frame_bytes_max = 10'000;
  make_world(limits);
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  EXPECT_EQ(a.net->send(a.last_session(), bulk(1, 1000)), send_result::queued);
  EXPECT_EQ(a.net->send(a.last_session(), bulk(2, 2000)), send_result::too_large);
  ASSERT_TRUE(run_until([&] { return !a.seen.ends().empty() && !b.seen.ends().empty(); }));
  EXPECT_EQ(a.seen.ends()[0].reason, end_reason::overflow);
  EXPECT_NE(a.seen.ends()[0].detail.find("too large"), std::string::npos);
}

TEST_P(contract, a_handler_that_chokes_on_a_message_ends_the_session_only) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  b.seen.on_frame([](const frame_ptr&) { KJ_FAIL_REQUIRE("not what I can read"); });
  a.net->send(a.last_session(), bulk(1));
  ASSERT_TRUE(run_until([&] { return !a.seen.ends().empty() && !b.seen.ends().empty(); }));
  EXPECT_EQ(b.seen.ends()[0].reason, end_reason::malformed);
  EXPECT_EQ(a.seen.ends()[0].reason, end_reason::closed_by_peer);
  EXPECT_EQ(b.net->counters().malformed, 1u);
  b.seen.on_frame(nullptr);
  ASSERT_TRUE(here().open(a, b));  // The node lives.
}

TEST_P(contract, frames_may_outlive_their_transport) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  b.seen.hold(true);
  for (std::uint64_t i = 1; i <= 20; ++i) {
    a.net->send(a.last_session(), bulk(i, 3000));
  }
  ASSERT_TRUE(run_until([&] { return b.seen.held() == 20; }));
  b.net->stop();
  destroy(b);
  const auto frames = b.seen.release();
  for (const auto& frame : frames) {
    EXPECT_EQ(frame->root().getSubmit().getTokens().size(), 6000u);
  }
}

TEST_P(contract, stop_sends_what_is_queued) {
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  for (std::uint64_t i = 1; i <= 600; ++i) {
    ASSERT_EQ(a.net->send(a.last_session(), bulk(i, 50)), send_result::queued);
  }
  a.net->stop();
  a.net->stop();
  ASSERT_EQ(a.seen.ends().size(), 1u);
  EXPECT_EQ(a.seen.ends()[0].reason, end_reason::closed_here);
  ASSERT_TRUE(run_until([&] { return !b.seen.ends().empty(); }));
  EXPECT_EQ(b.seen.ends()[0].reason, end_reason::closed_by_peer);
  EXPECT_EQ(numbers(b.seen.arrivals(), true), one_to(600));
  EXPECT_EQ(a.net->send(a.last_session(), bulk(1)), send_result::no_session);
}

TEST_P(contract, stop_does_not_wait_for_a_receiver_that_keeps_everything) {
  transport_limits limits;
  limits.credit_frames = 4;
  make_world(limits);
  auto& a = add("a");
  auto& b = add("b");
  ASSERT_TRUE(here().open(a, b));
  b.seen.hold(true);
  for (std::uint64_t i = 1; i <= 40; ++i) {
    a.net->send(a.last_session(), bulk(i));
  }
  a.net->stop();
  EXPECT_EQ(a.seen.ends().size(), 1u);
  ASSERT_TRUE(run_until([&] { return !b.seen.ends().empty(); }));
  b.seen.release();
}

// --- one-sided reads ----------------------------------------------------------------------------

TEST_P(contract, gets_bring_the_peers_bytes) {
  auto& a = add("a");
  auto& b = add("b", {.region_bytes = 20u << 20});
  fill(b.region, 1);
  ASSERT_TRUE(here().open(a, b));
  std::mt19937_64 random(5);
  for (const std::size_t length : {1ul, 7ul, 4096ul, 65'537ul, 1ul << 20, 16ul << 20}) {
    std::vector<std::byte> local(length + 64);
    const std::size_t offset = 1 + random() % (b.region.size() - length - 1);
    std::atomic<int> state{-1};
    a.net->get(a.last_session(), 0, {{offset, local.data() + 3, length}},
               [&](get_status status) { state = static_cast<int>(status); });
    ASSERT_TRUE(run_until([&] { return state >= 0; }));
    ASSERT_EQ(state, static_cast<int>(get_status::ok));
    EXPECT_EQ(std::memcmp(local.data() + 3, b.region.data() + offset, length), 0) << length;
    EXPECT_EQ(local[length + 3], std::byte{0});
  }
}

TEST_P(contract, gets_of_many_ranges_land_where_they_belong) {
  auto& a = add("a");
  auto& b = add("b", {.region_bytes = 8u << 20});
  fill(b.region, 2);
  ASSERT_TRUE(here().open(a, b));
  std::mt19937_64 random(6);
  std::vector<std::byte> local(8u << 20);
  std::vector<get_range> ranges;
  std::size_t at = 0;
  for (int i = 0; i < 400; ++i) {
    const std::size_t length = i % 7 == 0 ? 0 : 1 + random() % 20'000;
    // Every third range continues the one before on both sides, so that it can be merged.
    const bool adjacent = i % 3 == 1 && !ranges.empty() &&
                          ranges.back().remote_offset + ranges.back().length + length < 8u << 20;
    const auto remote = adjacent ? ranges.back().remote_offset + ranges.back().length
                                 : random() % (b.region.size() - length);
    at += adjacent ? 0 : random() % 50;
    ranges.push_back({remote, local.data() + at, length});
    at += length;
  }
  ASSERT_LE(at, local.size());
  std::atomic<int> state{-1};
  a.net->get(a.last_session(), 0, ranges,
             [&](get_status status) { state = static_cast<int>(status); });
  ASSERT_TRUE(run_until([&] { return state >= 0; }));
  ASSERT_EQ(state, static_cast<int>(get_status::ok));
  std::vector<std::byte> expected(local.size());
  for (const auto& range : ranges) {
    std::memcpy(expected.data() + (range.local - local.data()),
                b.region.data() + range.remote_offset, range.length);
  }
  EXPECT_EQ(local, expected);
}

TEST_P(contract, several_gets_run_side_by_side) {
  auto& a = add("a");
  auto& b = add("b", {.region_bytes = 4u << 20});
  fill(b.region, 3);
  ASSERT_TRUE(here().open(a, b));
  std::vector<std::vector<std::byte>> local(16, std::vector<std::byte>(256u << 10));
  std::atomic<int> ok{0};
  for (std::size_t i = 0; i < local.size(); ++i) {
    a.net->get(a.last_session(), 0, {{i * (256u << 10), local[i].data(), local[i].size()}},
               [&](get_status status) { ok += status == get_status::ok ? 1 : 100; });
  }
  ASSERT_TRUE(run_until([&] { return ok >= 16; }));
  EXPECT_EQ(ok, 16);
  for (std::size_t i = 0; i < local.size(); ++i) {
    EXPECT_EQ(std::memcmp(local[i].data(), b.region.data() + i * (256u << 10), local[i].size()), 0);
  }
  EXPECT_EQ(a.net->counters().gets, 16u);
  EXPECT_EQ(a.net->counters().get_bytes, 4u << 20);
}

TEST_P(contract, gets_outside_the_descriptor_are_refused) {
  auto& a = add("a");
  auto& b = add("b", {.region_bytes = 8192});
  ASSERT_TRUE(here().open(a, b));
  std::vector<std::byte> local(16'384);
  const auto try_get = [&](session_id session, std::uint32_t region,
                           std::vector<get_range> ranges) {
    std::atomic<int> state{-1};
    a.net->get(session, region, std::move(ranges),
               [&](get_status status) { state = static_cast<int>(status); });
    EXPECT_TRUE(run_until([&] { return state >= 0; }));
    return static_cast<get_status>(state.load());
  };
  const auto session = a.last_session();
  auto* to = local.data();
  EXPECT_EQ(try_get(session, 0, {{0, to, 8193}}), get_status::out_of_range);
  EXPECT_EQ(try_get(session, 0, {{8192, to, 1}}), get_status::out_of_range);
  EXPECT_EQ(try_get(session, 0, {{~0ull, to, 2}}), get_status::out_of_range);
  EXPECT_EQ(try_get(session, 0, {{2, to, ~std::size_t{0}}}), get_status::out_of_range);
  EXPECT_EQ(try_get(session, 0, {{0, to, 10}, {8190, to, 3}}), get_status::out_of_range);
  EXPECT_EQ(try_get(session, 1, {{0, to, 1}}), get_status::no_session);
  EXPECT_EQ(try_get(session + 1000, 0, {{0, to, 1}}), get_status::no_session);
  EXPECT_EQ(try_get(session, 0, {}), get_status::ok);
  EXPECT_EQ(try_get(session, 0, {{8192, to, 0}}), get_status::ok);
  EXPECT_EQ(try_get(session, 0, {{0, to, 8192}}), get_status::ok);
}

TEST_P(contract, a_get_fails_when_its_session_ends_and_only_after) {
  auto& a = add("a");
  auto& b = add("b", {.region_bytes = 64u << 20});
  ASSERT_TRUE(here().open(a, b));
  std::vector<std::byte> local(64u << 20);
  std::atomic<int> answers{0};
  std::atomic<bool> in_order{true};
  std::vector<get_range> ranges;
  for (std::size_t i = 0; i < 64; ++i) {
    const auto from = (63 - i) << 20;  // Descending: no two can be merged.
    ranges.push_back({from, local.data() + from, 1u << 20});
  }
  for (int i = 0; i < 4; ++i) {
    a.net->get(a.last_session(), 0, ranges, [&](get_status status) {
      if (status == get_status::failed && a.seen.ends().empty()) {
        in_order = false;
      }
      ++answers;
    });
  }
  a.net->close(a.last_session(), "now");
  ASSERT_TRUE(run_until([&] { return answers == 4; }));
  EXPECT_TRUE(in_order);
  here().settle();
  EXPECT_EQ(answers, 4);
  std::ranges::fill(local, std::byte{0x5a});  // Ours again: nothing may write it any more.
  here().settle();
  EXPECT_TRUE(std::ranges::all_of(local, [](std::byte b) { return b == std::byte{0x5a}; }));
}

TEST_P(contract, a_get_is_answered_when_the_peer_goes_away) {
  auto& a = add("a");
  auto& b = add("b", {.region_bytes = 64u << 20});
  ASSERT_TRUE(here().open(a, b));
  std::vector<std::byte> local(64u << 20);
  std::atomic<int> answers{0};
  for (int i = 0; i < 8; ++i) {
    a.net->get(a.last_session(), 0, {{0, local.data(), local.size()}},
               [&](get_status) { ++answers; });
  }
  b.net->stop();
  ASSERT_TRUE(run_until([&] { return answers == 8 && !a.seen.ends().empty(); }));
}

TEST_P(contract, stop_answers_every_get) {
  auto& a = add("a");
  auto& b = add("b", {.region_bytes = 32u << 20});
  ASSERT_TRUE(here().open(a, b));
  std::vector<std::byte> local(32u << 20);
  std::atomic<int> answers{0};
  for (int i = 0; i < 4; ++i) {
    a.net->get(a.last_session(), 0, {{0, local.data(), local.size()}},
               [&](get_status) { ++answers; });
  }
  a.net->stop();
  EXPECT_EQ(answers, 4);
}

INSTANTIATE_TEST_SUITE_P(transports, contract, testing::ValuesIn(contract_worlds()),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace eldr::messages::test
