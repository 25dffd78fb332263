#include "actors/node/dispatcher.hpp"

#include <gmock/gmock.h>

#include "actor_bench.hpp"
#include "wire_messages.hpp"

namespace eldr::actors::test {
namespace {

class dispatch : public testing::Test {
 protected:
  dispatch() {
    events.add(wire::ActorKind::NODE, node);
    events.add(wire::ActorKind::PREFILL, prefill);
    peer.session = 6;
    peer.id.node = "router-1";
  }
  void receive(messages::session_id session, messages::outgoing_ptr message) {
    events.received(std::make_shared<test_frame>(session, std::move(message)));
  }

  runtime actors{{[] { return std::int64_t{0}; }, [] { return std::uint64_t{0}; }, nullptr, {}},
                 runtime::mode::driven};
  dispatcher events{actors};
  std::shared_ptr<captured_mailbox> node = std::make_shared<captured_mailbox>();
  std::shared_ptr<captured_mailbox> prefill = std::make_shared<captured_mailbox>();
  messages::peer peer;
};

TEST_F(dispatch, frames_go_to_the_actor_that_they_name_and_sessions_to_all) {
  events.opened(peer);
  receive(6, make_heartbeat());
  receive(6, make_release({}, 1, true));
  receive(6, make_release({}, 2, true));
  events.ended(peer, messages::end_reason::malformed, "bits");
  ASSERT_EQ(node->events.size(), 3U);
  ASSERT_EQ(prefill->events.size(), 4U);
  EXPECT_TRUE(std::holds_alternative<peer_up>(prefill->events.front()));
  const auto& frame = std::get<incoming>(prefill->events[2]);
  EXPECT_EQ(frame.frame->root().getRelease().getLease(), 2U);
  EXPECT_EQ(frame.from, std::get<peer_up>(prefill->events.front()).peer)
      << "one peer object for the whole session";
  const auto& end = std::get<peer_down>(prefill->events.back());
  EXPECT_EQ(end.reason, messages::end_reason::malformed);
  EXPECT_EQ(end.detail, "bits");
}

TEST_F(dispatch, frames_for_actors_that_are_not_here_are_ignored) {
  events.opened(peer);
  receive(6, make_abort(1));  // No gateway on this node.
  EXPECT_EQ(node->events.size() + prefill->events.size(), 2U);
}

TEST_F(dispatch, nothing_of_a_session_comes_before_its_beginning_or_after_its_end) {
  receive(6, make_heartbeat());
  events.ended(peer, {}, {});
  EXPECT_TRUE(node->events.empty());
  events.opened(peer);
  events.ended(peer, {}, {});
  receive(6, make_heartbeat());
  events.ended(peer, {}, {});
  EXPECT_EQ(node->events.size(), 2U);
}

TEST_F(dispatch, a_failed_dial_is_the_node_actors_affair) {
  events.dial_failed("router-1:1", "nobody there");
  ASSERT_EQ(node->events.size(), 1U);
  EXPECT_EQ(std::get<dial_failed>(node->events[0]).address, "router-1:1");
  EXPECT_TRUE(prefill->events.empty());
}

}  // namespace
}  // namespace eldr::actors::test
