#pragma once
/// A router in memory, for the benchmark of its decisions: workers that it believes in, requests
/// that come to it, and a transport that goes nowhere.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/router/router.hpp"

namespace eldr::apps {

struct router_shape {
  std::uint32_t layers = 48;  ///< Of the signatures.
  std::uint32_t experts = 128;
  std::uint32_t decoders = 4;
};

/// What the policies are made of. The artifact has random centroids over all layers, one slot per
/// decode worker: what a choice costs does not depend on where they point.
actors::policy_options bench_policy_options(const router_shape& shape);

/// Takes what the router sends, and remembers the tasks.
class task_sink final : public messages::transport {
 public:
  struct task {
    messages::session_id worker = 0;
    std::uint64_t number = 0;
    actors::attempt_key key;
  };
  std::vector<task> tasks;

  /// Throws std::runtime_error if the router refuses a request.
  messages::send_result send(messages::session_id session, messages::outgoing_ptr out) override;
  void close(messages::session_id, const std::string& detail) override;

  std::span<std::byte> allocate_region(std::size_t) override { return {}; }
  void start(messages::transport_events&) override {}
  void dial(const std::string&) override {}
  void get(messages::session_id, std::uint32_t, std::vector<messages::get_range>,
           messages::get_callback) override {}
  void stop() override {}
  messages::transport_counters counters() const override { return {}; }
  const messages::identity& self() const noexcept override { return self_; }

 private:
  messages::identity self_;
};

/// What a router sees of its node.
class router_world final : public actors::context {
 public:
  std::int64_t now_ns() const override;
  std::uint64_t random() override { return 1; }
  task_sink& transport() override { return sink_; }
  actors::actor_ref self() override { return nullptr; }
  void wake_at(std::int64_t) override {}
  actors::actor_ref spawn(const std::string&, std::unique_ptr<actors::core>) override {
    return nullptr;
  }
  void quit() override {}

 private:
  task_sink sink_;
};

class router_rig {
 public:
  static constexpr std::size_t batch_size = 64;  ///< Requests between two reports of a worker.
  static constexpr std::uint32_t prompt_tokens = 256;

  /// Half as many prefill workers as decode workers.
  router_rig(const router_shape& shape, const std::string& policy);

  /// Microseconds, per request.
  struct costs {
    double submit_us = 0;   ///< A Submit placed on a prefill worker.
    double handoff_us = 0;  ///< A Handoff placed on a decode worker.
    double report_us = 0;   ///< A request's share of its workers' QueueDepth reports.
    double floor_us = 0;    ///< The messages of a handoff alone, written without any choice.
  };
  /// Takes a batch of requests through the router; those of the batch before end.
  costs run_batch();

 private:
  void add_peer(const std::string& node, const std::string& role, messages::session_id session,
                std::uint64_t incarnation);
  void add_worker(const std::string& node, const std::string& role, std::int32_t slot);
  actors::event received(messages::session_id from, messages::outgoing_ptr message) const;
  void handle(std::vector<actors::event>& events);
  messages::outgoing_ptr make_submit(const actors::attempt_key& key) const;
  messages::outgoing_ptr make_handoff(const actors::attempt_key& key) const;
  /// Of all workers that got tasks.
  std::vector<actors::event> reports();
  actors::event report(messages::session_id worker, std::uint64_t last_processed,
                       const std::vector<task_sink::task>& ended, std::size_t running) const;

  router_shape shape_;
  router_world world_;
  actors::router_core router_;
  std::map<messages::session_id, actors::peer_ptr> peers_;
  std::map<messages::session_id, std::int32_t> slots_;
  std::map<messages::session_id, std::vector<task_sink::task>> running_;
  std::uint64_t workers_ = 0;
  std::uint64_t requests_ = 0;
};

}  // namespace eldr::apps
