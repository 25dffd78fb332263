#include "cluster/simulation/sim_client.hpp"

#include <algorithm>
#include <utility>

namespace eldr::cluster {

sim_client::sim_client(messages::memory_network& network, std::vector<std::string> addresses)
    : transport_(network.attach({"client-sim", "client", 1, 0, 0, ""})) {
  transport_->start(*this);
  to_dial_.insert(addresses.begin(), addresses.end());
  redial();
}

sim_client::~sim_client() = default;

std::size_t sim_client::submit(sim_request request) {
  const auto index = requests_.size();
  auto& r = requests_.emplace_back(std::move(request));
  const auto session = sessions_.find(r.gateway);
  if (session == sessions_.end()) {
    r.finish = wire::FinishReason::ERROR;
    r.error = "no session with " + r.gateway;
    return index;
  }
  auto out = actors::make_message(wire::ActorKind::GATEWAY, actors::words_for_u32(r.prompt.size()));
  auto g = out->root().initGenerate();
  g.setClientRequest(index);
  actors::write(g.initIds(static_cast<unsigned>(r.prompt.size())), r.prompt);
  actors::write(g.initSampling(), r.gen);
  g.setHasSeed(true);
  g.setLabel("q" + std::to_string(index));
  r.sent = true;
  (void)transport_->send(session->second, std::move(out));
  return index;
}

void sim_client::cancel(std::size_t index) {
  auto& r = requests_.at(index);
  const auto session = sessions_.find(r.gateway);
  if (!r.sent || r.ended() || session == sessions_.end()) {
    return;
  }
  r.cancelled = true;
  auto out = actors::make_message(wire::ActorKind::GATEWAY);
  out->root().initAbort().setClientRequest(index);
  (void)transport_->send(session->second, std::move(out));
}

bool sim_client::all_ended() const {
  return std::all_of(requests_.begin(), requests_.end(), [](const auto& r) { return r.ended(); });
}

void sim_client::ask_status() {
  statuses_.clear();
  for (const auto& [node, session] : sessions_) {
    auto out = actors::make_message(wire::ActorKind::NODE);
    out->root().initStatusRequest().setTicket(1);
    (void)transport_->send(session, std::move(out));
  }
}

void sim_client::opened(const messages::peer& peer) {
  sessions_[peer.id.node] = peer.session;
}

void sim_client::received(messages::frame_ptr frame) {
  auto message = frame->root();
  if (message.which() == wire::Message::GENERATED) {
    on_generated(message.getGenerated());
  } else if (message.which() == wire::Message::STATUS) {
    auto status = message.getStatus();
    auto& counts = statuses_[actors::read(status.getNode())];
    for (auto count : status.getCounts()) {
      counts[actors::read(count.getName())] = count.getValue();
    }
  }
}

void sim_client::on_generated(wire::Generated::Reader in) {
  auto& r = requests_.at(in.getClientRequest());
  if (r.ended()) {
    r.violation = "a piece came after the end";
    return;
  }
  if (in.getPosition() != r.tokens.size()) {
    r.violation = "position " + std::to_string(in.getPosition()) + " came after " +
                  std::to_string(r.tokens.size()) + " tokens";
  }
  const auto ids = actors::read(in.getIds());
  r.tokens.insert(r.tokens.end(), ids.begin(), ids.end());
  r.finish = in.getFinish();
  if (r.ended()) {
    r.fail_reason = in.getFailReason();
    r.error = actors::read(in.getError());
    r.attempts = in.getAttempts();
    r.cached_tokens = in.getCachedTokens();
  }
}

void sim_client::ended(const messages::peer& peer, messages::end_reason, const std::string&) {
  const auto found = sessions_.find(peer.id.node);
  if (found == sessions_.end() || found->second != peer.session) {
    return;
  }
  sessions_.erase(found);
  to_dial_.insert(peer.id.address);
  for (auto& r : requests_) {
    if (r.gateway == peer.id.node && r.sent && !r.ended()) {
      r.finish = wire::FinishReason::ERROR;
      r.error = "the gateway went away";
    }
  }
}

void sim_client::dial_failed(const std::string& address, const std::string&) {
  to_dial_.insert(address);
}

void sim_client::redial() {
  for (const auto& address : std::exchange(to_dial_, {})) {
    transport_->dial(address);
  }
}

}  // namespace eldr::cluster
