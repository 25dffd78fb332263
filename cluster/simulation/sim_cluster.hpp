#pragma once
/// A whole cluster in one thread and in virtual time: the real actors over the in-memory transport.
/// A seed decides which node and job runs next, how long messages take and what they meet; equal
/// seeds give equal runs.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "actors/common/runtime.hpp"
#include "actors/common/settings.hpp"
#include "cluster/node_assembly.hpp"
#include "cluster/simulation/sim_client.hpp"
#include "cluster/simulation/sim_engine.hpp"
#include "messages/memory_network.hpp"

namespace eldr::cluster {

struct sim_options {
  std::uint64_t seed = 1;
  std::uint32_t gateways = 1;
  std::uint32_t routers = 1;
  std::uint32_t prefills = 2;
  std::uint32_t decodes = 3;
  std::uint32_t blocks = 64;  ///< KV blocks per worker.
  actors::settings settings;
  messages::network_options network;
  step_cost cost;
  /// One model for all workers (a runner keeps no state between steps).
  std::shared_ptr<gpu::model_runner> model;
  /// For the policies that need one.
  std::shared_ptr<const fit::artifact> artifact;
};

class sim_cluster {
 public:
  explicit sim_cluster(sim_options options);
  ~sim_cluster();
  sim_cluster(const sim_cluster&) = delete;
  sim_cluster& operator=(const sim_cluster&) = delete;

  std::int64_t now_ns() const noexcept { return now_ns_; }
  sim_client& client() noexcept { return *client_; }
  messages::memory_network& network() noexcept { return *network_; }
  /// Names of all nodes, in order of the manifest.
  std::vector<std::string> nodes() const;
  bool alive(const std::string& node) const { return nodes_.contains(node); }

  /// Runs `action` when the virtual clock reaches `at_ns`.
  void at(std::int64_t at_ns, std::function<void()> action);
  /// Runs until the clock reaches `until_ns` or `stop` (looked at between events) says so.
  void run_until(std::int64_t until_ns, const std::function<bool()>& stop = {});

  // Faults. Unknown or dead nodes are ignored.
  void kill(const std::string& node);
  /// Starts a node that was killed, with a fresh incarnation.
  void restart(const std::string& node);
  void freeze(const std::string& node);
  void thaw(const std::string& node);

  /// Counts of every live node by name, through StatusRequest.
  std::map<std::string, std::map<std::string, std::int64_t>> status();
  /// Actors that let an exception out: "decode-1/decoder: what".
  const std::vector<std::string>& actor_faults() const noexcept { return actor_faults_; }
  /// Sees every frame that reaches a router's node, before its actors do.
  std::function<void(const messages::frame&)> on_router_frame;
  /// Events handled so far: a measure of the work, equal for equal seeds.
  std::uint64_t events() const noexcept { return events_; }

 private:
  struct node;
  struct pending {
    std::int64_t due_ns = 0;
    std::uint64_t order = 0;
    std::string node;        ///< Whose engine; empty: an action of the run itself.
    std::uint64_t life = 0;  ///< Of that node when it was asked for.
    std::function<void()> what;
  };

  void start_node(const std::string& name);
  std::uint64_t draw(std::uint64_t n) { return rng_() % n; }
  /// One event at the current time; false if there is none.
  bool step();
  /// Time of the next thing that can happen.
  std::optional<std::int64_t> next_due_ns() const;
  void move_clock(std::int64_t to_ns);
  std::size_t find_pending() const;

  sim_options options_;
  std::mt19937_64 rng_;
  std::int64_t now_ns_ = 1'000'000'000;
  std::unique_ptr<messages::memory_network> network_;
  std::vector<actors::member> members_;
  std::map<std::string, std::unique_ptr<node>> nodes_;
  std::vector<pending> pending_;
  std::uint64_t next_order_ = 1;
  std::uint64_t next_life_ = 1;
  std::uint64_t events_ = 0;
  std::vector<std::string> actor_faults_;
  std::unique_ptr<sim_client> client_;
};

}  // namespace eldr::cluster
