#pragma once
/// A worker's side of exact load: which of each router's tasks it has dealt with and which of them
/// have ended since the last QueueDepth (design rule 9). Pure.

#include <cstdint>
#include <map>
#include <vector>

#include "actors/common/ids.hpp"
#include "messages/transport.hpp"

namespace eldr::actors {

class task_ledger {
 public:
  struct report {
    messages::session_id router = 0;
    std::uint64_t last_processed = 0;
    std::vector<attempt_key> ended;
  };

  /// A router's session opened: it is owed a first report.
  void router_up(messages::session_id router) { routers_[router] = {}; }
  void router_down(messages::session_id router) { routers_.erase(router); }

  /// Task `number` was accepted or refused. Numbers arrive in order.
  void processed(messages::session_id router, std::uint64_t number) {
    if (auto found = routers_.find(router); found != routers_.end()) {
      found->second.last_processed = number;
      found->second.dirty = true;
    }
  }
  void ended(messages::session_id router, const attempt_key& key) {
    if (auto found = routers_.find(router); found != routers_.end()) {
      found->second.ended.push_back(key);
      found->second.dirty = true;
    }
  }
  /// Waiting or running changed: every router is to hear of it.
  void touch() {
    for (auto& [session, state] : routers_) {
      state.dirty = true;
    }
  }
  bool dirty() const {
    for (const auto& [session, state] : routers_) {
      if (state.dirty) {
        return true;
      }
    }
    return false;
  }
  /// What is owed; clears it.
  std::vector<report> take_reports() {
    std::vector<report> out;
    for (auto& [session, state] : routers_) {
      if (state.dirty) {
        out.push_back({session, state.last_processed, std::move(state.ended)});
        state.ended.clear();
        state.dirty = false;
      }
    }
    return out;
  }

 private:
  struct router_state {
    std::uint64_t last_processed = 0;
    std::vector<attempt_key> ended;
    bool dirty = true;
  };
  std::map<messages::session_id, router_state> routers_;
};

}  // namespace eldr::actors
