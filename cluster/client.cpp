#include "cluster/client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>

#include "cluster/settings_of.hpp"
#include "cluster/token.hpp"
#include "messages/ucx_transport.hpp"

namespace eldr::cluster {

namespace {

messages::identity client_identity() {
  std::random_device device;
  const std::uint64_t number = (std::uint64_t{device()} << 32) | device() | 1;
  return {fmt::format("client-{:08x}", static_cast<std::uint32_t>(number >> 32)),
          "client",
          number,
          0,
          0,
          ""};
}

completion_piece read_piece(wire::Generated::Reader in) {
  completion_piece p;
  p.request = in.getClientRequest();
  p.position = in.getPosition();
  p.ids = actors::read(in.getIds());
  p.text = actors::read(in.getText());
  const auto choices = in.getChoices();
  p.choices.resize(choices.size() / sizeof(std::uint16_t));
  std::copy_n(choices.begin(), p.choices.size() * sizeof(std::uint16_t),
              reinterpret_cast<kj::byte*>(p.choices.data()));
  p.finish = in.getFinish();
  p.fail_reason = in.getFailReason();
  p.error = actors::read(in.getError());
  p.retry_after_ms = in.getRetryAfterMs();
  p.prefill_node = actors::read(in.getPrefillNode());
  p.decode_node = actors::read(in.getDecodeNode());
  p.attempts = in.getAttempts();
  p.prompt_tokens = in.getPromptTokens();
  p.cached_tokens = in.getCachedTokens();
  p.ttft_us = in.getTtftUs();
  p.total_us = in.getTotalUs();
  p.seed = in.getSeed();
  return p;
}

node_status read_status(wire::Status::Reader in) {
  node_status s;
  s.node = actors::read(in.getNode());
  s.role = actors::read(in.getRole());
  s.incarnation = in.getIncarnation();
  s.ready = in.getReady();
  s.draining = in.getDraining();
  s.uptime_ms = in.getUptimeMs();
  s.backend = actors::read(in.getBackend());
  s.fingerprint = in.getFingerprint();
  s.peers = actors::read(in.getPeers());
  for (auto count : in.getCounts()) {
    s.counts.emplace_back(actors::read(count.getName()), count.getValue());
  }
  for (auto w : in.getWorkers()) {
    s.workers.push_back({actors::read(w.getNode()), actors::read(w.getRole()), w.getDepth(),
                         w.getTotalBlocks(), w.getDraining(), w.getSlot()});
  }
  return s;
}

policy_state read_policy(wire::PolicySet::Reader in) {
  return {actors::read(in.getError()), actors::read(in.getPolicy()), in.getTau(),
          in.getCandidatesMin(), actors::read(in.getArtifact())};
}

placement_explained read_explained(wire::Explained::Reader in) {
  placement_explained out;
  out.found = in.getFound();
  out.request = in.getAttempt().getRequest().getCounter();
  out.attempt = in.getAttempt().getNumber();
  out.policy = actors::read(in.getPolicy());
  out.why = actors::read(in.getWhy());
  out.chosen = actors::read(in.getChosen());
  out.tokens = in.getTokens();
  out.label = actors::read(in.getLabel());
  out.decision_ns = in.getDecisionNs();
  out.age_ms = in.getAgeMs();
  for (auto c : in.getCandidates()) {
    out.candidates.push_back({actors::read(c.getNode()), c.getSlot(), c.getLoad(),
                              c.getSimilarity(), c.getCost(), c.getInBand()});
  }
  return out;
}

}  // namespace

class client::impl final : public messages::transport_events {
 public:
  explicit impl(const manifest& m) {
    messages::ucx_options options;
    options.token = read_token(m.token_path());
    options.shared_memory = m.transport.shared_memory;
    options.spin_us = m.transport.spin_us;
    options.route_to = m.nodes.front().address();
    options.limits = transport_limits_of(m);
    transport_ = messages::make_ucx_transport(client_identity(), std::move(options));
    transport_->start(*this);
  }

  ~impl() override { transport_->stop(); }

  void dial(const node_spec& node) {
    {
      const std::lock_guard lock(mutex_);
      failures_.erase(node.address());
    }
    transport_->dial(node.address());
  }

  /// Empty when the session is open; else why not.
  std::string wait_for(const node_spec& node, std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    const auto known = [&] {
      return sessions_.contains(node.name) || failures_.contains(node.address());
    };
    changed_.wait_until(lock, deadline, known);
    if (sessions_.contains(node.name)) {
      return {};
    }
    const auto failure = failures_.find(node.address());
    return failure == failures_.end() ? "no answer in time" : failure->second;
  }

  bool attached(const std::string& node) const {
    const std::lock_guard lock(mutex_);
    return sessions_.contains(node);
  }

  void send(const std::string& node, messages::outgoing_ptr out) {
    messages::session_id session = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto found = sessions_.find(node);
      session = found == sessions_.end() ? 0 : found->second;
    }
    if (transport_->send(session, std::move(out)) != messages::send_result::queued) {
      throw client_error(fmt::format(
          "cannot send to node '{}': there is no session with it, or the message is too large",
          node));
    }
  }

  std::optional<client_event> next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return !inbox_.empty(); })) {
      return std::nullopt;
    }
    auto entry = std::move(inbox_.front());
    inbox_.pop_front();
    lock.unlock();
    if (auto* lost = std::get_if<node_lost>(&entry)) {
      return std::move(*lost);
    }
    auto message = std::get<messages::frame_ptr>(entry)->root();
    switch (message.which()) {
      case wire::Message::GENERATED:
        return read_piece(message.getGenerated());
      case wire::Message::POLICY_SET:
        return read_policy(message.getPolicySet());
      case wire::Message::EXPLAINED:
        return read_explained(message.getExplained());
      default:
        return read_status(message.getStatus());
    }
  }

  void opened(const messages::peer& p) override {
    const std::lock_guard lock(mutex_);
    sessions_[p.id.node] = p.session;
    changed_.notify_all();
  }

  void received(messages::frame_ptr frame) override {
    const auto kind = frame->root().which();
    if (kind != wire::Message::GENERATED && kind != wire::Message::STATUS &&
        kind != wire::Message::POLICY_SET && kind != wire::Message::EXPLAINED) {
      return;
    }
    // The frame is kept, not copied: a command that does not read holds back its credits, so the
    // sender's bound applies and this queue needs none.
    const std::lock_guard lock(mutex_);
    inbox_.emplace_back(std::move(frame));
    changed_.notify_all();
  }

  void ended(const messages::peer& p, messages::end_reason reason,
             const std::string& detail) override {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(p.id.node);
    if (found != sessions_.end() && found->second == p.session) {
      sessions_.erase(found);
      inbox_.emplace_back(node_lost{p.id.node, detail.empty() ? to_string(reason) : detail});
    }
    changed_.notify_all();
  }

  void dial_failed(const std::string& address, const std::string& error) override {
    const std::lock_guard lock(mutex_);
    failures_[address] = error;
    changed_.notify_all();
  }

  std::uint64_t next_number() { return next_number_++; }

 private:
  std::unique_ptr<messages::transport> transport_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, messages::session_id> sessions_;
  std::map<std::string, std::string> failures_;  ///< By address.
  std::deque<std::variant<messages::frame_ptr, node_lost>> inbox_;
  std::uint64_t next_number_ = 1;
};

client::client(const manifest& m) : impl_(std::make_unique<impl>(m)) {}
client::~client() = default;

void client::attach(const node_spec& node, std::chrono::milliseconds timeout) {
  impl_->dial(node);
  const auto why = impl_->wait_for(node, std::chrono::steady_clock::now() + timeout);
  if (!why.empty()) {
    throw client_error(
        fmt::format("cannot attach to node '{}' at {}: {}; is the cluster running (eldr up)?",
                    node.name, node.address(), why));
  }
}

std::map<std::string, std::string> client::attach_all(const std::vector<const node_spec*>& nodes,
                                                      std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const auto* node : nodes) {
    impl_->dial(*node);
  }
  std::map<std::string, std::string> absent;
  for (const auto* node : nodes) {
    if (const auto why = impl_->wait_for(*node, deadline); !why.empty()) {
      absent[node->name] = why;
    }
  }
  return absent;
}

bool client::attached(const std::string& node) const {
  return impl_->attached(node);
}

std::uint64_t client::submit(const std::string& gateway, const completion_request& request) {
  const auto number = impl_->next_number();
  auto out =
      actors::make_message(wire::ActorKind::GATEWAY,
                           request.text.size() / 8 + actors::words_for_u32(request.ids.size()) + 8);
  auto g = out->root().initGenerate();
  g.setClientRequest(number);
  if (request.ids.empty()) {
    g.setText(request.text);
  } else {
    actors::write(g.initIds(static_cast<unsigned>(request.ids.size())), request.ids);
  }
  actors::write(g.initSampling(), request.gen);
  g.setHasSeed(request.has_seed);
  g.setLabel(request.label);
  g.setRecord(request.record);
  impl_->send(gateway, std::move(out));
  return number;
}

void client::cancel(const std::string& gateway, std::uint64_t request) {
  auto out = actors::make_message(wire::ActorKind::GATEWAY);
  out->root().initAbort().setClientRequest(request);
  impl_->send(gateway, std::move(out));
}

void client::ask_status(const std::string& node) {
  auto out = actors::make_message(wire::ActorKind::NODE);
  out->root().initStatusRequest().setTicket(1);
  impl_->send(node, std::move(out));
}

void client::set_policy(const std::string& router, const std::string& policy, float tau,
                        std::uint32_t candidates_min, const std::string& artifact_path) {
  auto out = actors::make_message(wire::ActorKind::ROUTER, artifact_path.size() / 8 + 16);
  auto set = out->root().initSetPolicy();
  set.setPolicy(policy);
  set.setTau(tau);
  set.setCandidatesMin(candidates_min);
  set.setArtifactPath(artifact_path);
  impl_->send(router, std::move(out));
}

void client::explain(const std::string& router, std::uint64_t counter) {
  auto out = actors::make_message(wire::ActorKind::ROUTER);
  out->root().initExplain().setCounter(counter);
  impl_->send(router, std::move(out));
}

void client::shut_down(const std::string& node, std::uint32_t drain_ms) {
  auto out = actors::make_message(wire::ActorKind::NODE);
  out->root().initShutdown().setDrainMs(drain_ms);
  impl_->send(node, std::move(out));
}

std::optional<client_event> client::next(std::chrono::milliseconds timeout) {
  return impl_->next(timeout);
}

}  // namespace eldr::cluster
