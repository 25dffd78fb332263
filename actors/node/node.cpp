#include "actors/node/node.hpp"

#include <capnp/serialize.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace eldr::actors {

namespace {
constexpr std::int64_t backoff_first_ms = 20;
constexpr std::int64_t backoff_max_ms = 1'000;
/// A session that lived at least this long is forgiven its end: the next dial is at once.
constexpr std::int64_t stable_session_ms = 5'000;
/// Pace at which a starting or draining node asks its actors how they are.
constexpr std::int64_t own_survey_ms = 20;
constexpr std::size_t surveys_max = 64;

std::int64_t value_of(const named_counts& counts, const std::string& name, std::int64_t absent) {
  for (const auto& [key, value] : counts) {
    if (key == name) {
      return value;
    }
  }
  return absent;
}
}  // namespace

bool roles_talk(const std::string& a, const std::string& b) {
  return a != b;
}

node_core::node_core(const settings& s, node_spec spec) : settings_(s), spec_(std::move(spec)) {}

void node_core::start(context& ctx) {
  const auto& self = ctx.transport().self();
  for (const auto& m : spec_.members) {
    // One of each pair dials: the lower name.
    if (roles_talk(self.role, m.role) && self.node < m.node) {
      targets_[m.address] = {m, false, 0, backoff_first_ms, 0};
    }
  }
  started_ns_ = ctx.now_ns();
  next_beat_ns_ = started_ns_ + ms_to_ns(settings_.heartbeat_ms);
  tick(ctx);
}

void node_core::handle(context& ctx, event& e) {
  if (auto* in = std::get_if<incoming>(&e)) {
    on_incoming(ctx, *in);
  } else if (auto* up = std::get_if<peer_up>(&e)) {
    on_peer_up(ctx, up->peer);
  } else if (auto* down = std::get_if<peer_down>(&e)) {
    on_peer_down(ctx, *down);
  } else if (auto* failed = std::get_if<dial_failed>(&e)) {
    on_dial_failed(ctx, *failed);
  } else if (auto* answer = std::get_if<described>(&e)) {
    on_described(ctx, *answer);
  } else if (std::holds_alternative<drain>(e)) {
    begin_drain(ctx, settings_.drain_ms);
  }
  tick(ctx);
}

void node_core::on_incoming(context& ctx, incoming& in) {
  auto message = in.frame->root();
  switch (message.which()) {
    case wire::Message::HEARTBEAT:
      if (auto found = sessions_.find(in.from->session); found != sessions_.end()) {
        found->second.heard_ns = ctx.now_ns();
      }
      break;
    case wire::Message::STATUS_REQUEST:
      ask_actors(ctx, in.from->session, message.getStatusRequest().getTicket());
      break;
    case wire::Message::SHUTDOWN:
      begin_drain(ctx, message.getShutdown().getDrainMs());
      break;
    default:
      break;
  }
}

void node_core::on_peer_up(context& ctx, const peer_ptr& peer) {
  sessions_[peer->session] = {peer, ctx.now_ns()};
  if (auto found = targets_.find(peer->id.address); found != targets_.end()) {
    found->second.dialing = false;
    found->second.opened_ns = ctx.now_ns();
  }
  if (peer->id.role != "client") {
    spdlog::info("session with {} is open", peer->id.node);
  }
}

void node_core::on_peer_down(context& ctx, const peer_down& down) {
  const auto& id = down.peer->id;
  sessions_.erase(down.peer->session);
  if (id.role == "client") {
    return;
  }
  ++sessions_lost_;
  // While this node winds down, sessions are expected to end.
  spdlog::log(draining_ ? spdlog::level::debug : spdlog::level::warn,
              "session with {} ended: {}{}{}", id.node, to_string(down.reason),
              down.detail.empty() ? "" : ": ", down.detail);
  auto found = targets_.find(id.address);
  if (found == targets_.end()) {
    return;
  }
  auto& t = found->second;
  const auto now = ctx.now_ns();
  const bool stable = now - t.opened_ns >= ms_to_ns(stable_session_ms);
  t.backoff_ms = stable ? backoff_first_ms : std::min(t.backoff_ms * 2, backoff_max_ms);
  t.next_dial_ns = now + ms_to_ns(t.backoff_ms);
}

void node_core::on_dial_failed(context& ctx, const dial_failed& failed) {
  auto found = targets_.find(failed.address);
  if (found == targets_.end()) {
    return;
  }
  auto& t = found->second;
  t.dialing = false;
  t.backoff_ms = std::min(t.backoff_ms * 2, backoff_max_ms);
  t.next_dial_ns = ctx.now_ns() + ms_to_ns(t.backoff_ms);
  spdlog::debug("no session with {} yet: {}", t.to.node, failed.error);
}

void node_core::tick(context& ctx) {
  deadline_set deadlines;
  const auto now = ctx.now_ns();
  dial_due(ctx, deadlines);
  if (now >= next_beat_ns_) {
    beat(ctx);
    check_health(ctx, now, now - next_beat_ns_);
    next_beat_ns_ = now + ms_to_ns(settings_.heartbeat_ms);
  }
  deadlines.add(next_beat_ns_);
  // While a survey is out, its answer is the next thing to wait for.
  if ((!ready_ || draining_) && !drained_ && !own_survey_out_) {
    if (now >= next_own_survey_ns_) {
      next_own_survey_ns_ = now + ms_to_ns(own_survey_ms);
      own_survey_out_ = true;
      ask_actors(ctx, 0, 0);
    } else {
      deadlines.add(next_own_survey_ns_);
    }
  }
  deadlines.arm(ctx);
}

void node_core::dial_due(context& ctx, deadline_set& deadlines) {
  const auto now = ctx.now_ns();
  for (auto& [address, t] : targets_) {
    const bool open = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& s) {
      return s.second.peer->id.address == address;
    });
    if (open || t.dialing || drained_) {
      continue;
    }
    if (now >= t.next_dial_ns) {
      t.dialing = true;
      ctx.transport().dial(address);
    } else {
      deadlines.add(t.next_dial_ns);
    }
  }
}

void node_core::beat(context& ctx) {
  ++beats_;
  for (const auto& [id, s] : sessions_) {
    if (s.peer->id.role != "client") {
      auto out = make_message(wire::ActorKind::NODE);
      out->root().initHeartbeat().setTick(beats_);
      send(ctx, id, std::move(out));
    }
  }
}

void node_core::check_health(context& ctx, std::int64_t now_ns, std::int64_t late_ns) {
  const auto deadline_ns = ms_to_ns(settings_.health_deadline_ms);
  if (late_ns >= deadline_ns / 2) {
    // This node was frozen or starved: what it missed says nothing about its peers.
    for (auto& [id, s] : sessions_) {
      s.heard_ns = now_ns;
    }
    return;
  }
  for (const auto& [id, s] : sessions_) {
    if (s.peer->id.role != "client" && now_ns - s.heard_ns > deadline_ns) {
      ctx.transport().close(
          id, "no sign of life for " + std::to_string(settings_.health_deadline_ms) + " ms");
    }
  }
}

void node_core::ask_actors(context& ctx, messages::session_id client, std::uint64_t client_ticket) {
  if (client != 0 && surveys_.size() >= surveys_max) {
    return;  // Someone asks faster than the actors answer; the client's own timeout tells.
  }
  const auto ticket = next_ticket_++;
  auto& s = surveys_[ticket];
  s.client = client;
  s.client_ticket = client_ticket;
  s.missing = spec_.actors.size();
  for (const auto& actor : spec_.actors) {
    actor->put(describe{ticket, ctx.self()});
  }
}

void node_core::on_described(context& ctx, described& answer) {
  auto found = surveys_.find(answer.ticket);
  if (found == surveys_.end()) {
    return;
  }
  auto& s = found->second;
  s.counts.insert(s.counts.end(), answer.counts.begin(), answer.counts.end());
  if (!answer.workers.empty()) {
    s.workers = std::move(answer.workers);
  }
  if (--s.missing > 0) {
    return;
  }
  if (s.client != 0) {
    send_status(ctx, s);
  } else {
    own_survey_out_ = false;
    on_own_survey(ctx, s);
  }
  surveys_.erase(found);
}

bool node_core::meets_all(std::int64_t now_ns, const std::string& role) const {
  if (now_ns - started_ns_ >= ms_to_ns(settings_.settle_ms)) {
    return true;
  }
  return std::all_of(spec_.members.begin(), spec_.members.end(), [&](const member& m) {
    return !roles_talk(role, m.role) ||
           std::any_of(sessions_.begin(), sessions_.end(),
                       [&](const auto& s) { return s.second.peer->id.node == m.node; });
  });
}

void node_core::on_own_survey(context& ctx, const survey& s) {
  if (!ready_ && value_of(s.counts, "ready", 1) != 0 &&
      meets_all(ctx.now_ns(), ctx.transport().self().role)) {
    ready_ = true;
    if (spec_.on_ready) {
      spec_.on_ready();
    }
  }
  if (draining_ && !drained_ &&
      (value_of(s.counts, "in_flight", 0) == 0 || ctx.now_ns() >= drain_deadline_ns_)) {
    drained_ = true;
    if (spec_.on_drained) {
      spec_.on_drained();
    }
  }
}

void node_core::begin_drain(context& ctx, std::int64_t drain_ms) {
  if (draining_) {
    return;
  }
  spdlog::info("draining: nothing new is taken, what runs has {} ms to finish", drain_ms);
  draining_ = true;
  drain_deadline_ns_ = ctx.now_ns() + ms_to_ns(drain_ms);
  for (const auto& actor : spec_.actors) {
    actor->put(drain{});
  }
}

void node_core::send_status(context& ctx, const survey& s) {
  const auto& self = ctx.transport().self();
  auto out = make_message(wire::ActorKind::CLIENT, 256 + s.workers.size() / 8);
  auto status = out->root().initStatus();
  status.setTicket(s.client_ticket);
  status.setNode(self.node);
  status.setRole(self.role);
  status.setIncarnation(self.incarnation);
  status.setReady(ready_);
  status.setDraining(draining_);
  status.setUptimeMs(static_cast<std::uint64_t>((ctx.now_ns() - started_ns_) / 1'000'000));
  status.setBackend(spec_.backend);
  status.setFingerprint(self.fingerprint);
  std::vector<std::string> peers;
  for (const auto& [id, session] : sessions_) {
    if (session.peer->id.role != "client") {
      peers.push_back(session.peer->id.node);
    }
  }
  std::sort(peers.begin(), peers.end());
  write(status.initPeers(static_cast<unsigned>(peers.size())), peers);
  auto counts = status.initCounts(static_cast<unsigned>(s.counts.size() + 1));
  for (unsigned i = 0; i < s.counts.size(); ++i) {
    counts[i].setName(s.counts[i].first);
    counts[i].setValue(s.counts[i].second);
  }
  counts[static_cast<unsigned>(s.counts.size())].setName("sessions_lost_total");
  counts[static_cast<unsigned>(s.counts.size())].setValue(sessions_lost_);
  if (!s.workers.empty()) {
    const kj::ArrayPtr<const capnp::word> words(
        reinterpret_cast<const capnp::word*>(s.workers.data()),
        s.workers.size() / sizeof(capnp::word));
    capnp::FlatArrayMessageReader view(words);
    status.setWorkers(view.getRoot<wire::ClusterView>().getWorkers());
  }
  send(ctx, s.client, std::move(out));
}

}  // namespace eldr::actors
