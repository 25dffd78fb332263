#pragma once
/// Actor `node`, one on every node: opens sessions with the cluster's other nodes and keeps them
/// open, watches their health, answers StatusRequest, and winds the node down.
///
/// Takes Heartbeat, StatusRequest, Shutdown, session events and `described`. Sends Heartbeat,
/// Status and `describe`, `drain` to the node's other actors.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actors/common/core.hpp"
#include "actors/common/settings.hpp"
#include "actors/common/wire.hpp"

namespace eldr::actors {

/// Another node of the cluster, as the manifest has it.
struct member {
  std::string node;
  std::string role;
  std::string address;
};

/// Whether nodes of these roles hold sessions with each other.
bool roles_talk(const std::string& a, const std::string& b);

struct node_spec {
  std::vector<member> members;    ///< All of the manifest, this node included.
  std::vector<actor_ref> actors;  ///< The node's other actors.
  std::string backend;            ///< Of the engine, for people.
  /// Called once, when the node can do its work.
  std::function<void()> on_ready;
  /// Called once, when the node has nothing more to do: its process may end.
  std::function<void()> on_drained;
};

class node_core final : public core {
 public:
  node_core(const settings&, node_spec);

  void start(context&) override;
  void handle(context&, event&) override;

 private:
  /// A member that this node dials.
  struct target {
    member to;
    bool dialing = false;
    std::int64_t next_dial_ns = 0;
    std::int64_t backoff_ms = 0;
    std::int64_t opened_ns = 0;
  };
  struct session {
    peer_ptr peer;
    std::int64_t heard_ns = 0;
  };
  /// Answers of the node's actors, gathered for one asker.
  struct survey {
    messages::session_id client = 0;  ///< 0: the node itself wants to know.
    std::uint64_t client_ticket = 0;
    std::size_t missing = 0;
    named_counts counts;
    std::vector<std::byte> workers;
  };

  void on_incoming(context&, incoming&);
  void on_peer_up(context&, const peer_ptr&);
  void on_peer_down(context&, const peer_down&);
  void on_dial_failed(context&, const dial_failed&);
  void on_described(context&, described&);
  void tick(context&);
  void dial_due(context&, deadline_set&);
  void beat(context&);
  void check_health(context&, std::int64_t now_ns, std::int64_t late_ns);
  void ask_actors(context&, messages::session_id client, std::uint64_t client_ticket);
  void on_own_survey(context&, const survey&);
  /// Whether there are sessions with all members that a node of `role` talks to, or settle_ms has
  /// passed without.
  bool meets_all(std::int64_t now_ns, const std::string& role) const;
  void send_status(context&, const survey&);
  void begin_drain(context&, std::int64_t drain_ms);

  settings settings_;
  node_spec spec_;
  std::map<std::string, target> targets_;  ///< By address.
  std::map<messages::session_id, session> sessions_;
  std::map<std::uint64_t, survey> surveys_;
  std::uint64_t next_ticket_ = 1;
  std::uint64_t beats_ = 0;
  std::int64_t started_ns_ = 0;
  std::int64_t next_beat_ns_ = 0;
  std::int64_t next_own_survey_ns_ = 0;
  bool own_survey_out_ = false;
  bool ready_ = false;
  bool draining_ = false;
  bool drained_ = false;
  std::int64_t drain_deadline_ns_ = 0;
  std::int64_t sessions_lost_ = 0;
};

}  // namespace eldr::actors
