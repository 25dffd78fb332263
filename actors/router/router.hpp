#pragma once
/// Actor `router`: places each request on a prefill worker and, at the handoff, on a decode worker.
/// Holds soft state only; routers are interchangeable.
///
/// Takes Submit and Cancel (request), Handoff (prefill), QueueDepth (workers), SetPolicy and
/// Explain (client). Sends PrefillTask, DecodeTask (workers), Placed, Failed (request),
/// Release{abandon} (prefill), ClusterView (gateways).

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "actors/common/cancelled.hpp"
#include "actors/common/core.hpp"
#include "actors/common/directory.hpp"
#include "actors/common/settings.hpp"
#include "actors/common/wire.hpp"
#include "actors/router/policy_desk.hpp"
#include "actors/router/prefill_ring.hpp"
#include "actors/router/worker_table.hpp"

namespace eldr::actors {

class router_core final : public core {
 public:
  /// A starting router waits for the spec's workers up to settle_ms. Throws as make_policy does.
  router_core(const settings&, router_spec);

  void start(context&) override;
  void handle(context&, event&) override;

 private:
  struct submission {
    attempt_key key;
    std::vector<gpu::token_id> tokens;
    generation gen;
    std::uint32_t generated = 0;
    std::vector<std::string> avoid;
    std::uint64_t fingerprint = 0;
    std::string label;
    bool record = false;
    std::int64_t deadline_ns = 0;
  };

  void on_incoming(context&, incoming&);
  void on_peer_up(context&, const peer_ptr&);
  void on_peer_down(context&, const peer_ptr&);
  void on_submit(context&, wire::Submit::Reader);
  void on_handoff(context&, const peer_ptr& prefill, wire::Handoff::Reader);
  void on_queue_depth(context&, const peer_ptr&, wire::QueueDepth::Reader);
  void place_prefill(context&, const submission&);
  void place_decode(context&, wire::Handoff::Reader, const attempt_key&, const peer_ptr& prefill);
  void send_prefill_task(context&, const worker&, const submission&);
  void send_decode_task(context&, const worker&, wire::Handoff::Reader, const attempt_key&);
  void send_placed(context&, const attempt_key&, wire::Phase, const worker&);
  void fail(context&, const attempt_key&, const failure&);
  /// Live workers of a kind, those to be avoided left out if others remain, by name.
  std::vector<const worker*> eligible(bool decodes, std::uint64_t fingerprint,
                                      const std::vector<std::string>& avoid) const;
  /// Whether some worker of the kind has as many blocks as `tokens` KV entries need.
  bool fits(bool decodes, std::uint64_t tokens) const;
  void settle(context&);
  bool all_reported() const;
  void publish_view(context&, deadline_set&);
  void write_view(wire::ClusterView::Builder) const;
  void describe_to(describe&) const;

  settings settings_;
  std::vector<std::string> expected_;
  directory peers_;
  worker_table table_;
  prefill_ring ring_;
  policy_desk desk_;
  cancelled_attempts cancelled_;
  std::deque<submission> held_;  ///< While settling.
  bool settled_ = false;
  std::int64_t settle_deadline_ns_ = 0;
  bool view_changed_ = true;
  std::int64_t last_view_ns_ = 0;
  // Counted for people.
  std::int64_t submits_ = 0;
  std::int64_t handoffs_ = 0;
  std::int64_t refused_ = 0;
};

}  // namespace eldr::actors
