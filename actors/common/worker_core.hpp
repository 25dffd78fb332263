#pragma once
/// What prefill and decode workers have in common: sessions, exact load reports, cancelled
/// attempts, drain and description.

#include <cstdint>
#include <optional>

#include "actors/common/cancelled.hpp"
#include "actors/common/core.hpp"
#include "actors/common/directory.hpp"
#include "actors/common/settings.hpp"
#include "actors/common/task_ledger.hpp"
#include "actors/common/wire.hpp"

namespace eldr::actors {

class worker_core : public core {
 public:
  explicit worker_core(const settings& s, wire::Phase phase) : settings_(s), phase_(phase) {}
  /// Dispatches one event, then lets the worker go on and sends the load reports that are owed.
  void handle(context&, event&) final;

 protected:
  /// A task's identity and where its answers go.
  struct task_origin {
    attempt_key key;
    messages::session_id router = 0;
  };

  virtual void on_message(context&, const peer_ptr&, wire::Message::Reader) = 0;
  /// step_done, get_done and rows_summed.
  virtual void on_local(context&, event&) = 0;
  /// Ends every task for which `gone` holds: its request or its router went away.
  virtual void on_cancel(context&, const attempt_key& up_to) = 0;
  virtual void on_gateway_lost(context&, std::uint64_t incarnation) = 0;
  virtual void on_worker_lost(context&, const peer_ptr&) {}
  virtual void on_router_lost(context&, messages::session_id) {}
  /// After each event: expire what is overdue, start what can start, add the next deadlines.
  virtual void advance(context&, deadline_set&) = 0;
  virtual void fill(wire::QueueDepth::Builder) const = 0;
  virtual named_counts counts() const = 0;

  /// Whether the task may be taken up; otherwise it is refused or dropped here. Call first for each
  /// task: it also marks the number as processed and ends older attempts of the request.
  bool accept(context&, const peer_ptr& router, std::uint64_t number, const attempt_key&);
  /// Ends a task: tells the request, and the router with the next report.
  void fail(context&, const task_origin&, wire::FailReason, const std::string& detail,
            const std::string& suspect = {}, std::uint32_t retry_after_ms = 0);
  /// The gateway that owns a request; null if there is no session with it.
  peer_ptr gateway_of(const attempt_key& key) const {
    return peers_.find_incarnation(key.request.gateway);
  }

  const settings& limits() const noexcept { return settings_; }
  bool draining() const noexcept { return draining_; }

  directory peers_;
  task_ledger ledger_;
  cancelled_attempts cancelled_;

 private:
  void on_incoming(context&, incoming&);
  void on_peer_up(context&, const peer_ptr&);
  void on_peer_down(context&, const peer_ptr&);
  void send_reports(context&, deadline_set&);

  settings settings_;
  wire::Phase phase_;
  bool draining_ = false;
  std::int64_t last_report_ns_ = 0;
};

}  // namespace eldr::actors
