#include "actors/common/worker_core.hpp"

#include <spdlog/spdlog.h>

#include <utility>

namespace eldr::actors {

namespace {
/// Load reports are coalesced over this time.
constexpr std::int64_t report_interval_ns = 1'000'000;
}  // namespace

void worker_core::handle(context& ctx, event& e) {
  if (auto* in = std::get_if<incoming>(&e)) {
    on_incoming(ctx, *in);
  } else if (auto* up = std::get_if<peer_up>(&e)) {
    on_peer_up(ctx, up->peer);
  } else if (auto* down = std::get_if<peer_down>(&e)) {
    on_peer_down(ctx, down->peer);
  } else if (std::holds_alternative<drain>(e)) {
    draining_ = true;
    ledger_.touch();
  } else if (auto* ask = std::get_if<describe>(&e)) {
    ask->reply_to->put(described{ask->ticket, counts(), {}});
    return;
  } else if (!std::holds_alternative<wake>(e)) {
    on_local(ctx, e);
  }
  deadline_set deadlines;
  advance(ctx, deadlines);
  send_reports(ctx, deadlines);
  deadlines.arm(ctx);
}

void worker_core::on_incoming(context& ctx, incoming& in) {
  auto message = in.frame->root();
  if (message.which() == wire::Message::CANCEL) {
    const auto key = read(message.getCancel().getAttempt());
    cancelled_.add(key);
    on_cancel(ctx, key);
    return;
  }
  on_message(ctx, in.from, message);
}

void worker_core::on_peer_up(context&, const peer_ptr& peer) {
  peers_.up(peer);
  if (peer->id.role == "router") {
    ledger_.router_up(peer->session);
  }
}

void worker_core::on_peer_down(context& ctx, const peer_ptr& peer) {
  peers_.down(peer);
  if (peer->id.role == "router") {
    ledger_.router_down(peer->session);
    on_router_lost(ctx, peer->session);
  } else if (peer->id.role == "gateway") {
    on_gateway_lost(ctx, peer->id.incarnation);
  } else {
    on_worker_lost(ctx, peer);
  }
}

bool worker_core::accept(context& ctx, const peer_ptr& router, std::uint64_t number,
                         const attempt_key& key) {
  ledger_.processed(router->session, number);
  const task_origin origin{key, router->session};
  if (cancelled_.contains(key) || !gateway_of(key)) {
    // Nobody waits for an answer; the router only needs to know that the task is over.
    ledger_.ended(router->session, key);
    return false;
  }
  if (key.number > 1) {
    const attempt_key older{key.request, key.number - 1};
    cancelled_.add(older);
    on_cancel(ctx, older);
  }
  if (draining_) {
    fail(ctx, origin, wire::FailReason::DRAINING, "the worker is draining",
         ctx.transport().self().node);
    return false;
  }
  return true;
}

void worker_core::fail(context& ctx, const task_origin& task, wire::FailReason reason,
                       const std::string& detail, const std::string& suspect,
                       std::uint32_t retry_after_ms) {
  ledger_.ended(task.router, task.key);
  if (auto gateway = gateway_of(task.key)) {
    send(ctx, gateway->session,
         make_failed(task.key, {phase_, reason, detail, suspect, retry_after_ms}));
  }
}

void worker_core::send_reports(context& ctx, deadline_set& deadlines) {
  if (!ledger_.dirty()) {
    return;
  }
  const auto now = ctx.now_ns();
  if (last_report_ns_ != 0 && now - last_report_ns_ < report_interval_ns) {
    deadlines.add(last_report_ns_ + report_interval_ns);
    return;
  }
  last_report_ns_ = now;
  for (const auto& report : ledger_.take_reports()) {
    auto out = make_message(wire::ActorKind::ROUTER, report.ended.size() * 4);
    auto depth = out->root().initQueueDepth();
    fill(depth);
    depth.setLastProcessed(report.last_processed);
    depth.setDraining(draining_);
    auto ended = depth.initEnded(static_cast<unsigned>(report.ended.size()));
    for (unsigned i = 0; i < report.ended.size(); ++i) {
      write(ended[i], report.ended[i]);
    }
    send(ctx, report.router, std::move(out));
  }
}

}  // namespace eldr::actors
