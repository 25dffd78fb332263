#include "cluster/simulation/sim_cluster.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace eldr::cluster {

namespace {

constexpr std::int64_t redial_ns = 50'000'000;

/// Ids as text: the simulated model has no words.
class id_decoder final : public actors::text_decoder {
 public:
  std::string feed(gpu::token_id id) override { return std::to_string(id) + " "; }
  std::string flush() override { return {}; }
};

class id_codec final : public actors::text_codec {
 public:
  explicit id_codec(std::shared_ptr<gpu::model_runner> model) : model_(std::move(model)) {}
  std::vector<gpu::token_id> encode(std::string_view text) const override {
    std::vector<gpu::token_id> ids;
    for (unsigned char c : text) {
      ids.push_back(c % vocab());
    }
    return ids;
  }
  std::unique_ptr<actors::text_decoder> make_decoder() const override {
    return std::make_unique<id_decoder>();
  }
  bool is_end_token(gpu::token_id id) const override { return model_->is_end_token(id); }
  std::uint32_t vocab() const override { return model_->geometry().vocab; }
  std::uint32_t context_max() const override { return model_->geometry().context_max; }

 private:
  std::shared_ptr<gpu::model_runner> model_;
};

/// Shows frames to a watcher on their way to the node's actors.
class watched_events final : public messages::transport_events {
 public:
  watched_events(messages::transport_events& next,
                 std::function<void(const messages::frame&)> watch)
      : next_(next), watch_(std::move(watch)) {}
  void opened(const messages::peer& p) override { next_.opened(p); }
  void received(messages::frame_ptr f) override {
    watch_(*f);
    next_.received(std::move(f));
  }
  void ended(const messages::peer& p, messages::end_reason r, const std::string& d) override {
    next_.ended(p, r, d);
  }
  void dial_failed(const std::string& a, const std::string& e) override { next_.dial_failed(a, e); }

 private:
  messages::transport_events& next_;
  std::function<void(const messages::frame&)> watch_;
};

}  // namespace

/// One simulated process. Members are destroyed from the last to the first.
struct sim_cluster::node {
  std::uint64_t life = 0;
  bool frozen = false;
  std::int64_t clock_ns = 0;  ///< How far its own timers have been moved.
  std::mt19937_64 rng;
  std::unique_ptr<messages::transport> transport;
  std::vector<std::int8_t> rows;
  std::unique_ptr<sim_engine> engine;
  std::unique_ptr<actors::runtime> runtime;
  std::unique_ptr<node_actors> actors;
  std::unique_ptr<watched_events> events;
};

sim_cluster::sim_cluster(sim_options options) : options_(std::move(options)), rng_(options_.seed) {
  options_.network.seed = rng_();
  network_ = std::make_unique<messages::memory_network>(options_.network);
  network_->advance_to(now_ns_);
  const auto add = [&](const std::string& role, std::uint32_t count) {
    for (std::uint32_t i = 1; i <= count; ++i) {
      const auto name = role + "-" + std::to_string(i);
      members_.push_back({name, role, name + ":1"});
    }
  };
  add("gateway", options_.gateways);
  add("router", options_.routers);
  add("prefill", options_.prefills);
  add("decode", options_.decodes);
  std::vector<std::string> addresses;
  for (const auto& m : members_) {
    start_node(m.node);
    addresses.push_back(m.address);
  }
  client_ = std::make_unique<sim_client>(*network_, addresses);
}

sim_cluster::~sim_cluster() {
  client_.reset();
  while (!nodes_.empty()) {
    kill(nodes_.begin()->first);
  }
}

std::vector<std::string> sim_cluster::nodes() const {
  std::vector<std::string> names;
  for (const auto& m : members_) {
    names.push_back(m.node);
  }
  return names;
}

void sim_cluster::start_node(const std::string& name) {
  const auto member = *std::find_if(members_.begin(), members_.end(),
                                    [&](const auto& m) { return m.node == name; });
  auto n = std::make_unique<node>();
  n->life = next_life_++;
  n->clock_ns = now_ns_;
  n->rng.seed(rng_());
  const bool works = member.role == "prefill" || member.role == "decode";
  const auto& layout = options_.model->layout();
  messages::identity id{name,
                        member.role,
                        rng_() | 1,
                        works ? options_.model->fingerprint() : 0,
                        works ? 1u : 0u,
                        member.address};
  n->transport = network_->attach(id);
  actors::environment env;
  env.now_ns = [this] { return now_ns_; };
  env.random = [rng = &n->rng] { return (*rng)(); };
  env.transport = n->transport.get();
  env.on_fault = [this, name](const std::string& actor, const std::string& what) {
    actor_faults_.push_back(name + "/" + actor + ": " + what);
  };
  assembly parts;
  parts.settings = options_.settings;
  parts.settings.block_tokens = layout.block_tokens;
  parts.members = members_;
  if (works) {
    const auto& geometry = options_.model->geometry();
    parts.memory.kv = n->transport->allocate_region(options_.blocks * layout.block_bytes());
    parts.memory.block_count = options_.blocks;
    if (member.role == "prefill") {
      n->rows.resize(std::size_t{options_.blocks} * geometry.layers * geometry.experts);
      parts.memory.rows = n->rows;
    }
    n->engine = std::make_unique<sim_engine>(
        options_.model, parts.memory, options_.cost,
        [this, name, life = n->life](std::int64_t delay_ns, std::function<void()> what) {
          pending_.push_back({now_ns_ + delay_ns, next_order_++, name, life, std::move(what)});
        });
    parts.engine = n->engine.get();
  } else if (member.role == "router") {
    const auto& geometry = options_.model->geometry();
    parts.policy.layers = geometry.layers;
    parts.policy.experts = geometry.experts;
    parts.policy.experts_per_token = geometry.experts_per_token;
    parts.policy.artifact = options_.artifact;
    parts.artifact_source = "simulation";
  } else if (member.role == "gateway") {
    parts.codec = std::make_shared<id_codec>(options_.model);
  }
  n->runtime = std::make_unique<actors::runtime>(std::move(env), actors::runtime::mode::driven);
  n->actors = std::make_unique<node_actors>(parts, *n->transport, *n->runtime);
  messages::transport_events* events = &n->actors->events();
  if (member.role == "router") {
    n->events = std::make_unique<watched_events>(*events, [this](const messages::frame& f) {
      if (on_router_frame) {
        on_router_frame(f);
      }
    });
    events = n->events.get();
  }
  n->transport->start(*events);
  nodes_[name] = std::move(n);
}

void sim_cluster::at(std::int64_t at_ns, std::function<void()> action) {
  pending_.push_back({at_ns, next_order_++, {}, 0, std::move(action)});
}

void sim_cluster::kill(const std::string& name) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end()) {
    return;
  }
  network_->kill(name);
  auto n = std::move(found->second);
  nodes_.erase(found);
  // The wire is cut first; what the dying actors still say reaches nobody.
  n->runtime->stop();
  std::erase_if(pending_, [&](const pending& p) { return p.node == name && p.life == n->life; });
}

void sim_cluster::restart(const std::string& name) {
  if (!nodes_.contains(name)) {
    start_node(name);
  }
}

void sim_cluster::freeze(const std::string& name) {
  if (auto found = nodes_.find(name); found != nodes_.end()) {
    found->second->frozen = true;
    network_->freeze(name);
  }
}

void sim_cluster::thaw(const std::string& name) {
  if (auto found = nodes_.find(name); found != nodes_.end()) {
    found->second->frozen = false;
    network_->thaw(name);
  }
}

std::size_t sim_cluster::find_pending() const {
  auto best = pending_.size();
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const auto& p = pending_[i];
    if (!p.node.empty()) {
      const auto owner = nodes_.find(p.node);
      if (owner == nodes_.end() || owner->second->frozen) {
        continue;
      }
    }
    if (best == pending_.size() ||
        std::pair(p.due_ns, p.order) < std::pair(pending_[best].due_ns, pending_[best].order)) {
      best = i;
    }
  }
  return best;
}

bool sim_cluster::step() {
  std::size_t jobs = 0;
  for (const auto& [name, n] : nodes_) {
    jobs += n->frozen ? 0 : n->runtime->runnable();
  }
  const auto due = network_->next_due_ns();
  const std::size_t network = due && *due <= now_ns_ ? 1 : 0;
  const auto next = find_pending();
  const std::size_t action = next < pending_.size() && pending_[next].due_ns <= now_ns_ ? 1 : 0;
  const auto choices = jobs + network + action;
  if (choices == 0) {
    return false;
  }
  ++events_;
  auto pick = draw(choices);
  if (pick < network) {
    network_->deliver_one();
    return true;
  }
  pick -= network;
  if (pick < action) {
    auto what = std::move(pending_[next].what);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(next));
    what();
    return true;
  }
  pick -= action;
  for (auto& [name, n] : nodes_) {
    const auto here = n->frozen ? 0 : n->runtime->runnable();
    if (pick < here) {
      n->runtime->run_one(pick);
      return true;
    }
    pick -= here;
  }
  return true;
}

std::optional<std::int64_t> sim_cluster::next_due_ns() const {
  auto next = network_->next_due_ns();
  const auto consider = [&](std::int64_t due) { next = std::min(next.value_or(due), due); };
  if (const auto p = find_pending(); p < pending_.size()) {
    consider(pending_[p].due_ns);
  }
  for (const auto& [name, n] : nodes_) {
    if (n->frozen) {
      continue;
    }
    if (const auto left = n->runtime->next_timeout_ns()) {
      consider(n->clock_ns + *left);
    }
  }
  return next;
}

void sim_cluster::move_clock(std::int64_t to_ns) {
  now_ns_ = std::max(now_ns_, to_ns);
  for (auto& [name, n] : nodes_) {
    // A frozen process's timers stand still; after the thaw they are overdue at once.
    if (!n->frozen && n->clock_ns < now_ns_) {
      n->runtime->advance(now_ns_ - n->clock_ns);
      n->clock_ns = now_ns_;
    }
  }
  network_->set_now(now_ns_);
}

void sim_cluster::run_until(std::int64_t until_ns, const std::function<bool()>& stop) {
  auto next_redial = now_ns_ + redial_ns;
  while (now_ns_ < until_ns && !(stop && stop())) {
    move_clock(now_ns_);
    if (step()) {
      continue;
    }
    const auto next = std::min({next_due_ns().value_or(until_ns), until_ns, next_redial});
    move_clock(next);
    if (now_ns_ >= next_redial) {
      client_->redial();
      next_redial = now_ns_ + redial_ns;
    }
  }
}

std::map<std::string, std::map<std::string, std::int64_t>> sim_cluster::status() {
  client_->ask_status();
  run_until(now_ns_ + 2'000'000'000, [&] { return client_->statuses().size() == nodes_.size(); });
  return client_->statuses();
}

}  // namespace eldr::cluster
