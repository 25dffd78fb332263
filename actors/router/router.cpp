#include "actors/router/router.hpp"

#include <capnp/serialize.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace eldr::actors {

namespace {
/// Load changes reach the gateways' views at this pace; changes of membership at once.
constexpr std::int64_t view_interval_ns = 500'000'000;
constexpr std::uint32_t retry_soon_ms = 200;

bool listed(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}
}  // namespace

router_core::router_core(const settings& s, router_spec spec)
    : settings_(s), expected_(spec.expected), desk_(s, std::move(spec)) {}

void router_core::start(context& ctx) {
  settle_deadline_ns_ = ctx.now_ns() + ms_to_ns(settings_.settle_ms);
  ctx.wake_at(settle_deadline_ns_);
}

void router_core::handle(context& ctx, event& e) {
  if (auto* in = std::get_if<incoming>(&e)) {
    on_incoming(ctx, *in);
  } else if (auto* up = std::get_if<peer_up>(&e)) {
    on_peer_up(ctx, up->peer);
  } else if (auto* down = std::get_if<peer_down>(&e)) {
    on_peer_down(ctx, down->peer);
  } else if (auto* ask = std::get_if<describe>(&e)) {
    describe_to(*ask);
    return;
  }
  if (!settled_) {
    settle(ctx);
  }
  deadline_set deadlines;
  publish_view(ctx, deadlines);
  if (!settled_) {
    deadlines.add(settle_deadline_ns_);
  }
  deadlines.arm(ctx);
}

void router_core::on_incoming(context& ctx, incoming& in) {
  auto message = in.frame->root();
  switch (message.which()) {
    case wire::Message::SUBMIT:
      on_submit(ctx, message.getSubmit());
      break;
    case wire::Message::HANDOFF:
      on_handoff(ctx, in.from, message.getHandoff());
      break;
    case wire::Message::QUEUE_DEPTH:
      on_queue_depth(ctx, in.from, message.getQueueDepth());
      break;
    case wire::Message::SET_POLICY: {
      auto out = make_message(wire::ActorKind::CLIENT, 64);
      desk_.change(message.getSetPolicy(), out->root().initPolicySet());
      send(ctx, in.from->session, std::move(out));
      break;
    }
    case wire::Message::EXPLAIN: {
      auto out = make_message(wire::ActorKind::CLIENT, 1024);
      desk_.explain(ctx, message.getExplain(), out->root().initExplained());
      send(ctx, in.from->session, std::move(out));
      break;
    }
    case wire::Message::CANCEL: {
      const auto key = read(message.getCancel().getAttempt());
      cancelled_.add(key);
      std::erase_if(held_, [&](const submission& s) { return cancelled_.contains(s.key); });
      break;
    }
    default:
      break;
  }
}

void router_core::on_peer_up(context&, const peer_ptr& peer) {
  peers_.up(peer);
  if (peer->id.role == "prefill" || peer->id.role == "decode") {
    worker w;
    w.node = peer->id.node;
    w.decodes = peer->id.role == "decode";
    w.session = peer->session;
    w.incarnation = peer->id.incarnation;
    w.fingerprint = peer->id.fingerprint;
    table_.up(std::move(w));
  }
  view_changed_ = true;
  last_view_ns_ = 0;
}

void router_core::on_peer_down(context&, const peer_ptr& peer) {
  peers_.down(peer);
  if (table_.down(peer->id.node, peer->session)) {
    desk_.policy().lost(peer->id.node);
  }
  if (peer->id.role == "gateway") {
    std::erase_if(
        held_, [&](const submission& s) { return s.key.request.gateway == peer->id.incarnation; });
  }
  view_changed_ = true;
  last_view_ns_ = 0;
}

bool router_core::all_reported() const {
  return std::all_of(expected_.begin(), expected_.end(), [&](const std::string& node) {
    auto found = table_.workers().find(node);
    return found != table_.workers().end() && found->second.reported;
  });
}

void router_core::settle(context& ctx) {
  if (!all_reported() && ctx.now_ns() < settle_deadline_ns_) {
    return;
  }
  settled_ = true;
  view_changed_ = true;
  last_view_ns_ = 0;
  for (auto held = std::exchange(held_, {}); const auto& s : held) {
    if (s.deadline_ns <= ctx.now_ns()) {
      fail(ctx, s.key,
           {wire::Phase::ROUTE,
            wire::FailReason::DEADLINE,
            "the router was still starting",
            {},
            retry_soon_ms});
    } else {
      place_prefill(ctx, s);
    }
  }
}

void router_core::on_submit(context& ctx, wire::Submit::Reader in) {
  submission s;
  s.key = read(in.getAttempt());
  if (cancelled_.contains(s.key)) {
    return;
  }
  ++submits_;
  s.tokens = read(in.getTokens());
  s.gen = read(in.getSampling());
  s.generated = in.getGenerated();
  s.avoid = read(in.getAvoid());
  s.fingerprint = in.getFingerprint();
  s.label = read(in.getLabel());
  s.record = in.getRecord();
  s.deadline_ns = ctx.now_ns() + ms_to_ns(settings_.route_ms);
  if (settled_) {
    place_prefill(ctx, s);
  } else if (held_.size() < settings_.router_queue_max) {
    held_.push_back(std::move(s));
  } else {
    fail(ctx, s.key,
         {wire::Phase::ROUTE,
          wire::FailReason::OVERLOADED,
          "the router is starting and its queue is full",
          {},
          retry_soon_ms});
  }
}

std::vector<const worker*> router_core::eligible(bool decodes, std::uint64_t fingerprint,
                                                 const std::vector<std::string>& avoid) const {
  std::vector<const worker*> good;
  std::vector<const worker*> avoided;
  for (const auto& [node, w] : table_.workers()) {
    if (w.decodes != decodes || !w.reported || w.draining ||
        (fingerprint != 0 && w.fingerprint != fingerprint)) {
      continue;
    }
    (listed(avoid, node) ? avoided : good).push_back(&w);
  }
  return good.empty() ? avoided : good;
}

bool router_core::fits(bool decodes, std::uint64_t tokens) const {
  const auto blocks = (tokens + settings_.block_tokens - 1) / settings_.block_tokens;
  bool any = false;
  for (const auto& [node, w] : table_.workers()) {
    if (w.decodes == decodes && w.reported) {
      if (blocks <= w.blocks_total) {
        return true;
      }
      any = true;
    }
  }
  return !any;  // With no worker to ask, that is the trouble to report.
}

void router_core::place_prefill(context& ctx, const submission& s) {
  const auto prompt = static_cast<std::uint32_t>(s.tokens.size());
  if (!fits(false, prompt) ||
      !fits(true, std::uint64_t{prompt} + std::max(s.gen.tokens_max, 1u) - 1)) {
    fail(ctx, s.key,
         {wire::Phase::ROUTE,
          wire::FailReason::TOO_LARGE,
          "a prompt of " + std::to_string(prompt) + " tokens with " +
              std::to_string(s.gen.tokens_max) +
              " to generate needs more KV blocks than any worker has",
          {},
          0});
    return;
  }
  const auto workers = eligible(false, s.fingerprint, s.avoid);
  if (workers.empty()) {
    fail(ctx, s.key,
         {wire::Phase::ROUTE,
          s.fingerprint == 0 ? wire::FailReason::NO_WORKER : wire::FailReason::FINGERPRINT,
          "no prefill worker is available",
          {},
          retry_soon_ms});
    return;
  }
  std::vector<prefill_candidate> candidates;
  candidates.reserve(workers.size());
  for (const auto* w : workers) {
    candidates.push_back({w->node, w->depth()});
  }
  const auto& chosen = *workers[ring_.choose(prefix_hash(s.tokens), candidates)];
  send_placed(ctx, s.key, wire::Phase::PREFILL, chosen);
  send_prefill_task(ctx, chosen, s);
}

void router_core::send_placed(context& ctx, const attempt_key& key, wire::Phase phase,
                              const worker& w) {
  const auto gateway = peers_.find_incarnation(key.request.gateway);
  if (!gateway) {
    return;
  }
  auto out = make_message(wire::ActorKind::GATEWAY);
  auto placed = out->root().initPlaced();
  write(placed.initAttempt(), key);
  placed.setPhase(phase);
  placed.setNode(w.node);
  placed.setIncarnation(w.incarnation);
  placed.setFingerprint(w.fingerprint);
  send(ctx, gateway->session, std::move(out));
}

void router_core::send_prefill_task(context& ctx, const worker& w, const submission& s) {
  auto out = make_message(wire::ActorKind::PREFILL,
                          words_for_u32(s.tokens.size()) + s.label.size() / 8 + s.avoid.size() * 8);
  auto task = out->root().initPrefillTask();
  task.setTaskNumber(table_.sent(w.node, s.key));
  write(task.initAttempt(), s.key);
  write(task.initTokens(static_cast<unsigned>(s.tokens.size())), s.tokens);
  write(task.initSampling(), s.gen);
  task.setGenerated(s.generated);
  task.setLabel(s.label);
  task.setRecord(s.record);
  write(task.initAvoid(static_cast<unsigned>(s.avoid.size())), s.avoid);
  send(ctx, w.session, std::move(out));
}

void router_core::on_handoff(context& ctx, const peer_ptr& prefill, wire::Handoff::Reader in) {
  const auto key = read(in.getAttempt());
  ++handoffs_;
  if (cancelled_.contains(key) || !peers_.find_incarnation(key.request.gateway)) {
    send(ctx, prefill->session, make_release(key, in.getKv().getLease(), true));
    return;
  }
  place_decode(ctx, in, key, prefill);
}

void router_core::place_decode(context& ctx, wire::Handoff::Reader in, const attempt_key& key,
                               const peer_ptr& prefill) {
  const auto workers = eligible(true, in.getFingerprint(), read(in.getAvoid()));
  if (workers.empty()) {
    fail(ctx, key,
         {wire::Phase::DECODE,
          wire::FailReason::NO_WORKER,
          "no decode worker is available",
          {},
          retry_soon_ms});
    send(ctx, prefill->session, make_release(key, in.getKv().getLease(), true));
    return;
  }
  const auto signature = in.getSignature();
  const auto label = in.getLabel();
  const routing_request request{
      key,
      {reinterpret_cast<const std::byte*>(signature.begin()), signature.size()},
      in.getTokenCount(),
      {label.cStr(), label.size()}};
  const auto& chosen = desk_.choose(ctx, request, workers);
  send_placed(ctx, key, wire::Phase::DECODE, chosen);
  send_decode_task(ctx, chosen, in, key);
}

void router_core::send_decode_task(context& ctx, const worker& w, wire::Handoff::Reader in,
                                   const attempt_key& key) {
  auto out = make_message(wire::ActorKind::DECODER, words_for_u32(in.getKv().getBlocks().size()) +
                                                        in.getKv().getChecksums().size() + 16);
  auto task = out->root().initDecodeTask();
  task.setTaskNumber(table_.sent(w.node, key));
  write(task.initAttempt(), key);
  task.setKv(in.getKv());
  task.setFirstToken(in.getFirstToken());
  task.setRecord(in.getRecord());
  task.setSampling(in.getSampling());
  task.setGenerated(in.getGenerated());
  send(ctx, w.session, std::move(out));
}

void router_core::on_queue_depth(context& ctx, const peer_ptr& from, wire::QueueDepth::Reader in) {
  worker_table::report r;
  r.waiting = in.getWaiting();
  r.running = in.getRunning();
  r.last_processed = in.getLastProcessed();
  for (auto key : in.getEnded()) {
    r.ended.push_back(read(key));
  }
  r.blocks_free = in.getFreeBlocks();
  r.blocks_total = in.getTotalBlocks();
  r.draining = in.getDraining();
  r.slot = in.getSlot();
  for (const auto& key : r.ended) {
    desk_.policy().ended(key, from->id.node);
  }
  if (in.getBatch() > 0 && in.getStepUs() > 0) {
    desk_.policy().observed_step(in.getBatch(),
                                 in.getDistinctExperts() * static_cast<float>(in.getLayers()),
                                 static_cast<float>(in.getStepUs()));
  }
  if (!table_.reported(from->session, r)) {
    ctx.transport().close(from->session, "QueueDepth counts tasks that were never sent");
    return;
  }
  view_changed_ = true;
}

void router_core::fail(context& ctx, const attempt_key& key, const failure& why) {
  ++refused_;
  if (auto gateway = peers_.find_incarnation(key.request.gateway)) {
    send(ctx, gateway->session, make_failed(key, why));
  }
}

void router_core::publish_view(context& ctx, deadline_set& deadlines) {
  if (!view_changed_) {
    return;
  }
  const auto now = ctx.now_ns();
  if (last_view_ns_ != 0 && now - last_view_ns_ < view_interval_ns) {
    deadlines.add(last_view_ns_ + view_interval_ns);
    return;
  }
  view_changed_ = false;
  last_view_ns_ = now;
  for (const auto& gateway : peers_.with_role("gateway")) {
    auto out = make_message(wire::ActorKind::GATEWAY, table_.workers().size() * 16);
    write_view(out->root().initClusterView());
    send(ctx, gateway->session, std::move(out));
  }
}

void router_core::write_view(wire::ClusterView::Builder view) const {
  view.setReady(settled_);
  auto workers = view.initWorkers(static_cast<unsigned>(table_.workers().size()));
  unsigned i = 0;
  for (const auto& [node, w] : table_.workers()) {
    auto out = workers[i++];
    out.setNode(node);
    out.setRole(w.decodes ? "decode" : "prefill");
    out.setIncarnation(w.incarnation);
    out.setFingerprint(w.fingerprint);
    out.setDepth(w.depth());
    out.setTotalBlocks(w.blocks_total);
    out.setDraining(w.draining);
    out.setSlot(w.slot);
  }
}

void router_core::describe_to(describe& ask) const {
  std::int64_t depth = 0;
  std::int64_t in_flight = 0;
  for (const auto& [node, w] : table_.workers()) {
    depth += w.depth();
    in_flight += static_cast<std::int64_t>(w.in_flight.size());
  }
  described out{ask.ticket,
                {{"in_flight", in_flight + static_cast<std::int64_t>(held_.size())},
                 {"held", static_cast<std::int64_t>(held_.size())},
                 {"depth", depth},
                 {"workers", static_cast<std::int64_t>(table_.workers().size())},
                 {"ready", settled_ ? 1 : 0},
                 {"submits_total", submits_},
                 {"handoffs_total", handoffs_},
                 {"refused_total", refused_}},
                {}};
  const auto of_policy = desk_.counts();
  out.counts.insert(out.counts.end(), of_policy.begin(), of_policy.end());
  capnp::MallocMessageBuilder message;
  write_view(message.initRoot<wire::ClusterView>());
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  const auto* first = reinterpret_cast<const std::byte*>(bytes.begin());
  out.workers.assign(first, first + bytes.size());
  ask.reply_to->put(std::move(out));
}

}  // namespace eldr::actors
