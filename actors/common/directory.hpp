#pragma once
/// The sessions that are open right now, found by node name, by session or by incarnation.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/common/event.hpp"

namespace eldr::actors {

class directory {
 public:
  void up(const peer_ptr& peer) {
    by_name_[peer->id.node] = peer;
    by_session_[peer->session] = peer;
    by_incarnation_[peer->id.incarnation] = peer;
  }
  void down(const peer_ptr& peer) {
    erase_if_same(by_name_, peer->id.node, peer);
    erase_if_same(by_session_, peer->session, peer);
    erase_if_same(by_incarnation_, peer->id.incarnation, peer);
  }
  /// Null when there is no open session.
  peer_ptr find(const std::string& node) const { return lookup(by_name_, node); }
  peer_ptr find_session(messages::session_id session) const { return lookup(by_session_, session); }
  peer_ptr find_incarnation(std::uint64_t incarnation) const {
    return lookup(by_incarnation_, incarnation);
  }
  /// Open sessions with nodes of a role, by name.
  std::vector<peer_ptr> with_role(const std::string& role) const {
    std::vector<peer_ptr> out;
    for (const auto& [name, peer] : by_name_) {
      if (peer->id.role == role) {
        out.push_back(peer);
      }
    }
    return out;
  }
  /// All open sessions, by name.
  std::vector<peer_ptr> all() const {
    std::vector<peer_ptr> out;
    for (const auto& [name, peer] : by_name_) {
      out.push_back(peer);
    }
    return out;
  }

 private:
  template <class Map, class Key>
  static peer_ptr lookup(const Map& map, const Key& key) {
    auto found = map.find(key);
    return found == map.end() ? nullptr : found->second;
  }
  template <class Map, class Key>
  static void erase_if_same(Map& map, const Key& key, const peer_ptr& peer) {
    auto found = map.find(key);
    if (found != map.end() && found->second->session == peer->session) {
      map.erase(found);
    }
  }

  std::map<std::string, peer_ptr> by_name_;
  std::map<messages::session_id, peer_ptr> by_session_;
  std::map<std::uint64_t, peer_ptr> by_incarnation_;
};

}  // namespace eldr::actors
