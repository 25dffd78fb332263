#pragma once
/// The router's view of the workers: who is there, what they reported, and what this router sent
/// since (design rule 9, exact load). Pure.

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/common/ids.hpp"
#include "messages/transport.hpp"

namespace eldr::actors {

/// One worker in one session.
struct worker {
  std::string node;
  bool decodes = false;  ///< Decode worker; else prefill.
  messages::session_id session = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t fingerprint = 0;
  bool reported = false;  ///< It has sent a QueueDepth in this session.
  bool draining = false;
  std::int32_t slot = -1;
  std::uint32_t waiting = 0;
  std::uint32_t running = 0;
  std::uint32_t blocks_free = 0;
  std::uint32_t blocks_total = 0;
  std::uint64_t last_sent = 0;
  std::uint64_t last_processed = 0;
  std::set<attempt_key> in_flight;  ///< This router's tasks that have not been reported ended.

  /// Requests at the worker: what it reported and what is still on its way there.
  std::uint32_t depth() const {
    return waiting + running + static_cast<std::uint32_t>(last_sent - last_processed);
  }
};

class worker_table {
 public:
  /// What a QueueDepth says.
  struct report {
    std::uint32_t waiting = 0;
    std::uint32_t running = 0;
    std::uint64_t last_processed = 0;
    std::vector<attempt_key> ended;
    std::uint32_t blocks_free = 0;
    std::uint32_t blocks_total = 0;
    bool draining = false;
    std::int32_t slot = -1;
  };

  /// A session opened: counts start at zero.
  void up(worker w) { workers_.insert_or_assign(w.node, std::move(w)); }

  /// The session ended: the worker is gone (true). A newer session of the same node is left alone.
  bool down(const std::string& node, messages::session_id session) {
    auto found = workers_.find(node);
    if (found == workers_.end() || found->second.session != session) {
      return false;
    }
    workers_.erase(found);
    return true;
  }

  /// Takes a report in; false if it is of no known session or contradicts itself.
  bool reported(messages::session_id session, const report& r) {
    for (auto& [node, w] : workers_) {
      if (w.session != session) {
        continue;
      }
      if (r.last_processed > w.last_sent || r.last_processed < w.last_processed) {
        return false;
      }
      w.reported = true;
      w.waiting = r.waiting;
      w.running = r.running;
      w.last_processed = r.last_processed;
      w.blocks_free = r.blocks_free;
      w.blocks_total = r.blocks_total;
      w.draining = r.draining;
      w.slot = r.slot;
      for (const auto& key : r.ended) {
        w.in_flight.erase(key);
      }
      return true;
    }
    return false;
  }

  /// Number for the next task to `node`, which must be there.
  std::uint64_t sent(const std::string& node, const attempt_key& key) {
    auto& w = workers_.at(node);
    w.in_flight.insert(key);
    return ++w.last_sent;
  }

  /// By node name.
  const std::map<std::string, worker>& workers() const noexcept { return workers_; }

 private:
  std::map<std::string, worker> workers_;
};

}  // namespace eldr::actors
