#include "actors/request/request.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace eldr::actors {

namespace {
constexpr std::size_t avoid_max = 8;
constexpr std::int64_t backoff_first_ms = 20;
constexpr std::int64_t backoff_max_ms = 1'000;

/// Failures that no other attempt can mend.
bool is_final(wire::FailReason reason) {
  return reason == wire::FailReason::TOO_LARGE || reason == wire::FailReason::INVALID;
}

/// Failures that pass with time rather than with another worker.
bool wants_pause(wire::FailReason reason) {
  return reason == wire::FailReason::OVERLOADED || reason == wire::FailReason::NO_WORKER ||
         reason == wire::FailReason::DRAINING || reason == wire::FailReason::FINGERPRINT;
}

wire::ActorKind actor_of(wire::Phase phase) {
  switch (phase) {
    case wire::Phase::PREFILL:
      return wire::ActorKind::PREFILL;
    case wire::Phase::DECODE:
      return wire::ActorKind::DECODER;
    default:
      return wire::ActorKind::ROUTER;
  }
}
}  // namespace

request_core::request_core(const settings& s, request_spec spec,
                           std::shared_ptr<const text_codec> codec, actor_ref gateway)
    : settings_(s),
      spec_(std::move(spec)),
      codec_(std::move(codec)),
      gateway_(std::move(gateway)),
      stream_(std::exchange(spec_.prompt, {}), spec_.gen,
              [codec = codec_](gpu::token_id id) { return codec->is_end_token(id); }),
      text_(codec_->make_decoder()) {}

void request_core::start(context& ctx) {
  begin_attempt(ctx);
  ctx.wake_at(std::min(phase_deadline_ns_, spec_.arrived_ns + ms_to_ns(settings_.total_ms)));
}

void request_core::handle(context& ctx, event& e) {
  if (ended_) {
    return;
  }
  if (auto* in = std::get_if<incoming>(&e)) {
    on_frame(ctx, *in);
  } else if (auto* up = std::get_if<peer_up>(&e)) {
    spec_.peers.up(up->peer);
    if (phase_ == phase::no_router && up->peer->id.role == "router") {
      submit(ctx, up->peer);
    }
  } else if (auto* down = std::get_if<peer_down>(&e)) {
    on_peer_down(ctx, down->peer);
  } else if (std::holds_alternative<stop_request>(e)) {
    cancel_attempt(ctx);
    finish(ctx, wire::FinishReason::CANCELLED, {});
  } else if (std::holds_alternative<wake>(e)) {
    on_wake(ctx);
  }
  if (!ended_) {
    ctx.wake_at(std::min(phase_deadline_ns_, spec_.arrived_ns + ms_to_ns(settings_.total_ms)));
  }
}

void request_core::enter(context& ctx, phase next, std::int64_t within_ms) {
  phase_ = next;
  phase_deadline_ns_ = ctx.now_ns() + ms_to_ns(within_ms);
}

void request_core::begin_attempt(context& ctx) {
  ++attempt_;
  placements_.clear();
  router_ = 0;
  // A stop condition may have been met by tokens that arrived before the attempt failed.
  if (const auto done = stream_.finished(); done != wire::FinishReason::NONE) {
    finish(ctx, done, {});
    return;
  }
  const auto routers = spec_.peers.with_role("router");
  if (routers.empty()) {
    enter(ctx, phase::no_router, settings_.total_ms);
    return;
  }
  // Routers are interchangeable: spread by count, and go elsewhere on a retry.
  submit(ctx, routers[(spec_.id.counter + attempt_ - 1) % routers.size()]);
}

void request_core::submit(context& ctx, const peer_ptr& router) {
  router_ = router->session;
  const auto tokens = stream_.tokens();
  auto out = make_message(wire::ActorKind::ROUTER, words_for_u32(tokens.size()) +
                                                       spec_.label.size() / 8 + avoid_.size() * 8);
  auto submit = out->root().initSubmit();
  write(submit.initAttempt(), key());
  write(submit.initTokens(static_cast<unsigned>(tokens.size())), tokens);
  write(submit.initSampling(), stream_.remaining());
  submit.setGenerated(stream_.delivered());
  write(submit.initAvoid(static_cast<unsigned>(avoid_.size())), avoid_);
  submit.setFingerprint(stream_.delivered() > 0 ? fingerprint_ : 0);
  submit.setLabel(spec_.label);
  submit.setRecord(spec_.record);
  enter(ctx, phase::routing, settings_.route_ms);
  send(ctx, router_, std::move(out));
}

void request_core::on_frame(context& ctx, incoming& in) {
  auto message = in.frame->root();
  switch (message.which()) {
    case wire::Message::PLACED:
      on_placed(ctx, message.getPlaced());
      break;
    case wire::Message::TOKENS:
      on_tokens(ctx, in.from, message.getTokens());
      break;
    case wire::Message::FAILED:
      on_failed(ctx, message.getFailed());
      break;
    default:
      break;
  }
}

bool request_core::is_current(wire::Attempt::Reader in) const {
  return in.getNumber() == attempt_ && phase_ != phase::backoff;
}

void request_core::on_placed(context& ctx, wire::Placed::Reader in) {
  if (!is_current(in.getAttempt())) {
    return;
  }
  const auto node = read(in.getNode());
  placements_.push_back({in.getPhase(), node, in.getIncarnation()});
  const auto peer = spec_.peers.find(node);
  if (!peer || peer->id.incarnation != in.getIncarnation()) {
    attempt_failed(
        ctx, {in.getPhase(), wire::FailReason::PEER_LOST, "no session with " + node, node, 0});
    return;
  }
  if (in.getPhase() == wire::Phase::PREFILL) {
    prefill_node_ = node;
    fingerprint_ = in.getFingerprint();
    if (phase_ == phase::routing) {
      enter(ctx, phase::prefill, settings_.queue_ms + settings_.prefill_ms);
    }
  } else {
    decode_node_ = node;
  }
}

void request_core::on_tokens(context& ctx, const peer_ptr& from, wire::Tokens::Reader in) {
  if (!is_current(in.getAttempt())) {
    send(ctx, from->session,
         make_cancel(
             actor_of(from->id.role == "prefill" ? wire::Phase::PREFILL : wire::Phase::DECODE),
             read(in.getAttempt())));
    return;
  }
  const auto ids = read(in.getIds());
  std::vector<gpu::token_id> fresh;
  const auto verdict = stream_.take(in.getPosition(), ids, fresh);
  if (!fresh.empty() && !first_token_ns_) {
    first_token_ns_ = ctx.now_ns();
    cached_tokens_ = in.getCachedTokens();
  }
  std::string text;
  for (auto id : fresh) {
    text += codec_->is_end_token(id) ? std::string() : text_->feed(id);
  }
  const auto done = stream_.finished();
  if (done != wire::FinishReason::NONE) {
    finish(ctx, done, {}, fresh, text, in.getChoices());
    return;
  }
  if (!fresh.empty()) {
    send_generated(ctx, fresh, text, wire::FinishReason::NONE, {}, in.getChoices());
  }
  if (verdict == token_stream::verdict::gap || verdict == token_stream::verdict::excess ||
      in.getFinish() != wire::FinishReason::NONE) {
    attempt_failed(ctx,
                   {wire::Phase::DECODE, wire::FailReason::GAP,
                    "the token stream of " + from->id.node + " does not fit", from->id.node, 0});
  } else if (from->id.role == "prefill") {
    if (phase_ == phase::decode) {
      return;  // The decoder's repeat of it has overtaken the first token.
    }
    enter(ctx, phase::handoff, settings_.route_ms + settings_.queue_ms + settings_.pull_ms);
  } else {
    enter(ctx, phase::decode, settings_.decode_progress_ms);
  }
}

void request_core::on_failed(context& ctx, wire::Failed::Reader in) {
  if (!is_current(in.getAttempt())) {
    return;
  }
  attempt_failed(ctx, {in.getPhase(), in.getReason(), read(in.getDetail()), read(in.getSuspect()),
                       in.getRetryAfterMs()});
}

void request_core::on_peer_down(context& ctx, const peer_ptr& peer) {
  spec_.peers.down(peer);
  if (peer->session == router_ && (phase_ == phase::routing || phase_ == phase::prefill ||
                                   (phase_ == phase::handoff && placements_.size() < 2))) {
    attempt_failed(ctx, {wire::Phase::ROUTE,
                         wire::FailReason::PEER_LOST,
                         "router " + peer->id.node + " went away",
                         {},
                         0});
    return;
  }
  for (const auto& p : placements_) {
    // Once the decoder has taken over, the prefill worker is no longer needed.
    const bool needed = p.phase != wire::Phase::PREFILL || phase_ != phase::decode;
    if (p.incarnation == peer->id.incarnation && needed && phase_ != phase::backoff) {
      attempt_failed(ctx, {p.phase, wire::FailReason::PEER_LOST, p.node + " went away", p.node, 0});
      return;
    }
  }
}

void request_core::on_wake(context& ctx) {
  const auto now = ctx.now_ns();
  if (now >= spec_.arrived_ns + ms_to_ns(settings_.total_ms)) {
    cancel_attempt(ctx);
    finish(ctx, wire::FinishReason::ERROR,
           {wire::Phase::ROUTE,
            wire::FailReason::DEADLINE,
            "not finished within " + std::to_string(settings_.total_ms) + " ms",
            {},
            1000});
    return;
  }
  if (now < phase_deadline_ns_) {
    return;
  }
  if (phase_ == phase::backoff) {
    begin_attempt(ctx);
    return;
  }
  const auto& stuck = placements_.empty() ? std::string() : placements_.back().node;
  const auto where = placements_.empty() ? wire::Phase::ROUTE : placements_.back().phase;
  attempt_failed(
      ctx, {where, wire::FailReason::DEADLINE,
            "no progress at " + (stuck.empty() ? std::string("the router") : stuck), stuck, 0});
}

void request_core::attempt_failed(context& ctx, const failure& why) {
  cancel_attempt(ctx);
  if (!why.suspect.empty() &&
      std::find(avoid_.begin(), avoid_.end(), why.suspect) == avoid_.end()) {
    avoid_.push_back(why.suspect);
    if (avoid_.size() > avoid_max) {
      avoid_.erase(avoid_.begin());
    }
  }
  if (is_final(why.reason) || attempt_ > settings_.retries_max) {
    finish(ctx, wire::FinishReason::ERROR, why);
    return;
  }
  spdlog::debug("{} failed ({}), trying again", to_string(key()), why.detail);
  if (!wants_pause(why.reason)) {
    begin_attempt(ctx);
    return;
  }
  // Doubling with jitter, so that refused requests do not come back together.
  const auto base = std::min(backoff_first_ms << std::min(attempt_, 10u), backoff_max_ms);
  enter(ctx, phase::backoff, base / 2 + static_cast<std::int64_t>(ctx.random() % (base / 2 + 1)));
}

void request_core::cancel_attempt(context& ctx) {
  if (router_ != 0 && spec_.peers.find_session(router_)) {
    send(ctx, router_, make_cancel(wire::ActorKind::ROUTER, key()));
  }
  for (const auto& p : placements_) {
    if (const auto peer = spec_.peers.find_incarnation(p.incarnation)) {
      send(ctx, peer->session, make_cancel(actor_of(p.phase), key()));
    }
  }
}

void request_core::finish(context& ctx, wire::FinishReason reason, const failure& why,
                          std::span<const gpu::token_id> fresh, const std::string& text,
                          capnp::Data::Reader choices) {
  ended_ = true;
  send_generated(ctx, fresh, text + text_->flush(), reason, why, choices);
  gateway_->put(request_ended{spec_.id.counter, reason, attempt_, stream_.delivered()});
  ctx.quit();
}

void request_core::send_generated(context& ctx, std::span<const gpu::token_id> fresh,
                                  const std::string& text, wire::FinishReason reason,
                                  const failure& why, capnp::Data::Reader choices) {
  auto out = make_message(
      wire::ActorKind::CLIENT,
      words_for_u32(fresh.size()) + (text.size() + why.detail.size() + choices.size()) / 8 + 16);
  auto g = out->root().initGenerated();
  g.setClientRequest(spec_.client_request);
  g.setPosition(stream_.delivered() - static_cast<std::uint32_t>(fresh.size()));
  write(g.initIds(static_cast<unsigned>(fresh.size())), fresh);
  g.setText(text);
  g.setFinish(reason);
  g.setChoices(choices);
  if (reason != wire::FinishReason::NONE) {
    g.setFailReason(why.reason);
    g.setError(why.detail);
    g.setRetryAfterMs(why.retry_after_ms);
    g.setPrefillNode(prefill_node_);
    g.setDecodeNode(decode_node_);
    g.setAttempts(attempt_);
    g.setPromptTokens(stream_.prompt_tokens());
    g.setTtftUs(static_cast<std::uint64_t>(
        (first_token_ns_.value_or(ctx.now_ns()) - spec_.arrived_ns) / 1000));
    g.setTotalUs(static_cast<std::uint64_t>((ctx.now_ns() - spec_.arrived_ns) / 1000));
    g.setSeed(spec_.gen.sampling.seed);
    g.setCachedTokens(cached_tokens_);
  }
  send(ctx, spec_.client, std::move(out));
}

}  // namespace eldr::actors
