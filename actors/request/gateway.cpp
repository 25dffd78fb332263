#include "actors/request/gateway.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace eldr::actors {

namespace {
constexpr std::uint32_t retry_soon_ms = 200;

wire::ActorKind actor_at(const peer_ptr& peer) {
  return peer->id.role == "prefill"  ? wire::ActorKind::PREFILL
         : peer->id.role == "decode" ? wire::ActorKind::DECODER
                                     : wire::ActorKind::ROUTER;
}
}  // namespace

gateway_core::gateway_core(const settings& s, std::shared_ptr<const text_codec> codec)
    : settings_(s), codec_(std::move(codec)) {}

void gateway_core::handle(context& ctx, event& e) {
  if (auto* in = std::get_if<incoming>(&e)) {
    on_incoming(ctx, *in);
  } else if (auto* up = std::get_if<peer_up>(&e)) {
    peers_.up(up->peer);
    broadcast(e);
  } else if (auto* down = std::get_if<peer_down>(&e)) {
    on_peer_down(ctx, e, down->peer);
  } else if (auto* ended = std::get_if<request_ended>(&e)) {
    on_ended(*ended);
  } else if (std::holds_alternative<drain>(e)) {
    draining_ = true;
  } else if (auto* ask = std::get_if<describe>(&e)) {
    ask->reply_to->put(described{ask->ticket, counts(), {}});
  }
}

void gateway_core::on_incoming(context& ctx, incoming& in) {
  auto message = in.frame->root();
  switch (message.which()) {
    case wire::Message::GENERATE:
      on_generate(ctx, in.from, message.getGenerate());
      break;
    case wire::Message::ABORT:
      on_abort(in.from, message.getAbort().getClientRequest());
      break;
    case wire::Message::PLACED:
      deliver(ctx, in, read(message.getPlaced().getAttempt()));
      break;
    case wire::Message::TOKENS:
      deliver(ctx, in, read(message.getTokens().getAttempt()));
      break;
    case wire::Message::FAILED:
      deliver(ctx, in, read(message.getFailed().getAttempt()));
      break;
    case wire::Message::CLUSTER_VIEW:
      if (message.getClusterView().getReady()) {
        ready_routers_.insert(in.from->id.node);
      }
      break;
    default:
      break;
  }
}

void gateway_core::refuse(context& ctx, const peer_ptr& client, std::uint64_t client_request,
                          wire::FailReason reason, const std::string& why,
                          std::uint32_t retry_after_ms) {
  ++refused_;
  auto out = make_message(wire::ActorKind::CLIENT, why.size() / 8 + 16);
  auto g = out->root().initGenerated();
  g.setClientRequest(client_request);
  g.setFinish(wire::FinishReason::ERROR);
  g.setFailReason(reason);
  g.setError(why);
  g.setRetryAfterMs(retry_after_ms);
  send(ctx, client->session, std::move(out));
}

void gateway_core::on_generate(context& ctx, const peer_ptr& client, wire::Generate::Reader in) {
  const auto name = in.getClientRequest();
  const auto no = [&](wire::FailReason reason, const std::string& why, std::uint32_t retry = 0) {
    refuse(ctx, client, name, reason, why, retry);
  };
  if (draining_) {
    return no(wire::FailReason::DRAINING, "the gateway is shutting down; use another one");
  }
  if (live_.size() >= settings_.requests_max) {
    return no(wire::FailReason::OVERLOADED,
              "the gateway has " + std::to_string(live_.size()) +
                  " requests in flight (limits.requests_max); try again shortly",
              retry_soon_ms);
  }
  auto& of_client = clients_[client->session];
  if (of_client.contains(name)) {
    return no(wire::FailReason::INVALID, "this client request number is already in use");
  }
  auto prompt = in.hasIds() && in.getIds().size() > 0 ? read(in.getIds())
                                                      : codec_->encode(read(in.getText()));
  if ((in.getText().size() == 0 && in.getIds().size() == 0) || prompt.empty()) {
    return no(wire::FailReason::INVALID, "the prompt is empty; give it at least one character");
  }
  if (std::any_of(prompt.begin(), prompt.end(), [&](auto id) { return id >= codec_->vocab(); })) {
    return no(wire::FailReason::INVALID,
              "the prompt has token ids outside the model's vocabulary of " +
                  std::to_string(codec_->vocab()));
  }
  if (prompt.size() >= codec_->context_max()) {
    return no(wire::FailReason::TOO_LARGE, "the prompt has " + std::to_string(prompt.size()) +
                                               " tokens; the model's context of " +
                                               std::to_string(codec_->context_max()) +
                                               " leaves no room for an answer");
  }
  request_spec spec;
  spec.gen = read(in.getSampling());
  if (spec.gen.tokens_max == 0 || !(spec.gen.sampling.temperature >= 0) ||
      std::isinf(spec.gen.sampling.temperature) ||
      !(spec.gen.sampling.top_p > 0 && spec.gen.sampling.top_p <= 1)) {
    return no(wire::FailReason::INVALID,
              "sampling needs max tokens >= 1, a finite temperature >= 0 and top-p in (0, 1]");
  }
  // The answer ends where the context does.
  const auto room = codec_->context_max() - static_cast<std::uint32_t>(prompt.size());
  spec.gen.tokens_max = std::min(spec.gen.tokens_max, room);
  if (!in.getHasSeed()) {
    spec.gen.sampling.seed = ctx.random();
  }
  spec.id = {ctx.transport().self().incarnation, next_counter_++};
  spec.client = client->session;
  spec.client_request = name;
  spec.prompt = std::move(prompt);
  spec.label = read(in.getLabel());
  spec.record = in.getRecord();
  spec.arrived_ns = ctx.now_ns();
  spec.peers = peers_;
  const auto counter = spec.id.counter;
  ++accepted_;
  of_client[name] = counter;
  auto actor =
      ctx.spawn("request-" + std::to_string(counter),
                std::make_unique<request_core>(settings_, std::move(spec), codec_, ctx.self()));
  live_[counter] = {std::move(actor), client->session, name};
}

void gateway_core::on_abort(const peer_ptr& client, std::uint64_t client_request) {
  auto of_client = clients_.find(client->session);
  if (of_client == clients_.end()) {
    return;
  }
  if (auto found = of_client->second.find(client_request); found != of_client->second.end()) {
    live_.at(found->second).actor->put(stop_request{});
  }
}

void gateway_core::deliver(context& ctx, incoming& in, const attempt_key& key) {
  auto found = live_.find(key.request.counter);
  if (key.request.gateway == ctx.transport().self().incarnation && found != live_.end()) {
    found->second.actor->put(std::move(in));
    return;
  }
  send(ctx, in.from->session, make_cancel(actor_at(in.from), key));
}

void gateway_core::on_peer_down(context&, event& e, const peer_ptr& peer) {
  peers_.down(peer);
  ready_routers_.erase(peer->id.node);
  if (auto of_client = clients_.find(peer->session); of_client != clients_.end()) {
    for (const auto& [name, counter] : of_client->second) {
      live_.at(counter).actor->put(stop_request{});
    }
    if (of_client->second.empty()) {
      clients_.erase(of_client);
    }
    return;
  }
  broadcast(e);
}

void gateway_core::broadcast(const event& e) {
  for (auto& [counter, request] : live_) {
    request.actor->put(e);
  }
}

void gateway_core::on_ended(const request_ended& ended) {
  auto found = live_.find(ended.counter);
  if (found == live_.end()) {
    return;
  }
  auto of_client = clients_.find(found->second.client);
  of_client->second.erase(found->second.client_request);
  if (of_client->second.empty() && !peers_.find_session(of_client->first)) {
    clients_.erase(of_client);
  }
  live_.erase(found);
  retries_ += ended.attempts - 1;
  tokens_ += ended.tokens;
  (ended.finish == wire::FinishReason::ERROR       ? failed_
   : ended.finish == wire::FinishReason::CANCELLED ? cancelled_
                                                   : finished_) += 1;
}

named_counts gateway_core::counts() const {
  return {{"in_flight", static_cast<std::int64_t>(live_.size())},
          {"requests", static_cast<std::int64_t>(live_.size())},
          {"ready", ready_routers_.empty() ? 0 : 1},
          {"accepted_total", accepted_},
          {"refused_total", refused_},
          {"finished_total", finished_},
          {"failed_total", failed_},
          {"cancelled_total", cancelled_},
          {"retries_total", retries_},
          {"tokens_total", tokens_}};
}

}  // namespace eldr::actors
