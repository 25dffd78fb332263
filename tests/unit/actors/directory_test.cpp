#include "actors/common/directory.hpp"

#include <gmock/gmock.h>

namespace eldr::actors {
namespace {

peer_ptr make_peer(const std::string& node, const std::string& role, messages::session_id session,
                   std::uint64_t incarnation) {
  auto p = std::make_shared<messages::peer>();
  p->session = session;
  p->id.node = node;
  p->id.role = role;
  p->id.incarnation = incarnation;
  return p;
}

TEST(directory, finds_a_peer_by_each_of_its_names) {
  directory peers;
  const auto p = make_peer("decode-1", "decode", 3, 77);
  peers.up(p);
  EXPECT_EQ(peers.find("decode-1"), p);
  EXPECT_EQ(peers.find_session(3), p);
  EXPECT_EQ(peers.find_incarnation(77), p);
  EXPECT_EQ(peers.find("decode-2"), nullptr);
  peers.down(p);
  EXPECT_EQ(peers.find("decode-1"), nullptr);
  EXPECT_EQ(peers.find_session(3), nullptr);
  EXPECT_EQ(peers.find_incarnation(77), nullptr);
}

TEST(directory, the_end_of_an_old_session_leaves_its_successor) {
  directory peers;
  const auto old = make_peer("decode-1", "decode", 3, 77);
  const auto same_process = make_peer("decode-1", "decode", 4, 77);
  peers.up(old);
  peers.up(same_process);
  peers.down(old);
  EXPECT_EQ(peers.find("decode-1"), same_process);
  EXPECT_EQ(peers.find_incarnation(77), same_process);
  EXPECT_EQ(peers.find_session(3), nullptr);

  const auto restarted = make_peer("decode-1", "decode", 5, 78);
  peers.up(restarted);
  peers.down(same_process);
  EXPECT_EQ(peers.find("decode-1"), restarted);
  EXPECT_EQ(peers.find_incarnation(77), nullptr);
}

TEST(directory, lists_by_name_whatever_the_order_of_arrival) {
  directory peers;
  const auto b = make_peer("router-b", "router", 1, 11);
  const auto a = make_peer("router-a", "router", 2, 12);
  const auto g = make_peer("gateway", "gateway", 3, 13);
  for (const auto& p : {b, g, a}) {
    peers.up(p);
  }
  EXPECT_THAT(peers.with_role("router"), testing::ElementsAre(a, b));
  EXPECT_THAT(peers.all(), testing::ElementsAre(g, a, b));
}

}  // namespace
}  // namespace eldr::actors
