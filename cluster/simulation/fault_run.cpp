#include "cluster/simulation/fault_run.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "gpu/hash_runner.hpp"
#include "gpu/signature.hpp"

namespace eldr::cluster {

namespace {

constexpr std::int64_t ms = 1'000'000;

/// Deadlines short enough that a run reaches rest in a few virtual seconds.
actors::settings fast_settings() {
  actors::settings s;
  s.heartbeat_ms = 100;
  s.health_deadline_ms = 500;
  s.lease_ms = 3'000;
  s.route_ms = 500;
  s.queue_ms = 1'000;
  s.prefill_ms = 1'000;
  s.pull_ms = 800;
  s.decode_progress_ms = 1'000;
  s.total_ms = 8'000;
  s.settle_ms = 300;
  s.retries_max = 6;
  return s;
}

class fault_run {
 public:
  explicit fault_run(const fault_run_options& o)
      : options_(o), rng_(o.seed * 0x9E3779B97F4A7C15u + 1) {
    if (!options_.model) {
      options_.model = gpu::make_hash_runner(hash_);
    }
    cluster_ = std::make_unique<sim_cluster>(shape());
    cluster_->on_router_frame = [this](const messages::frame& f) { check_handoff(f); };
  }

  fault_run_report run() {
    // All sessions first: the faults come at random moments, also before the first request.
    cluster_->run_until(cluster_->now_ns() + static_cast<std::int64_t>(draw(400)) * ms);
    plan_requests();
    plan_faults();
    const auto begin = cluster_->now_ns();
    cluster_->run_until(begin + 3'000 * ms);
    heal();
    cluster_->run_until(begin + 14'000 * ms,
                        [&] { return submitted_ == planned_ && cluster_->client().all_ended(); });
    check_requests();
    // Leases that nobody released run out; then everything must be at rest.
    cluster_->run_until(cluster_->now_ns() + 4'000 * ms);
    check_rest();
    report_.events = cluster_->events();
    report_.history = cluster_->network().history_hash();
    return std::move(report_);
  }

 private:
  std::uint64_t draw(std::uint64_t n) { return rng_() % n; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + draw(high - low + 1);
  }
  void violation(std::string what) { report_.violations.push_back(std::move(what)); }

  sim_options shape() {
    sim_options s;
    s.seed = rng_();
    s.gateways = static_cast<std::uint32_t>(between(1, 2));
    s.routers = static_cast<std::uint32_t>(between(1, 2));
    s.prefills = static_cast<std::uint32_t>(between(1, 3));
    s.decodes = static_cast<std::uint32_t>(between(1, 4));
    s.blocks = static_cast<std::uint32_t>(between(16, 64));
    s.settings = fast_settings();
    static constexpr const char* policies[] = {"rr", "random", "jsq", "p2c", "union"};
    s.settings.policy = policies[draw(5)];
    s.settings.decode_batch_max = static_cast<std::uint32_t>(between(2, 8));
    s.settings.decode_queue_max = static_cast<std::uint32_t>(between(4, 32));
    s.settings.prefill_chunk_tokens = static_cast<std::uint32_t>(between(1, 4) * 16);
    s.model = options_.model;
    report_.plan.push_back(std::to_string(s.gateways) + " gateways, " + std::to_string(s.routers) +
                           " routers, " + std::to_string(s.prefills) + "P" +
                           std::to_string(s.decodes) + "D, " + std::to_string(s.blocks) +
                           " blocks, policy " + s.settings.policy);
    return s;
  }

  std::vector<gpu::token_id> make_prompt() {
    const auto vocab = options_.model->geometry().vocab;
    // Few openings, many endings: prefixes are shared in full, in part and not at all.
    std::mt19937_64 opening(draw(3));
    std::vector<gpu::token_id> prompt(between(1, 90));
    const auto shared = std::min<std::size_t>(prompt.size(), draw(64));
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] = static_cast<gpu::token_id>((i < shared ? opening() : rng_()) % vocab);
    }
    return prompt;
  }

  void plan_requests() {
    planned_ = static_cast<std::uint32_t>(between(options_.requests_min, options_.requests_max));
    report_.requests = planned_;
    const auto nodes = cluster_->nodes();
    const auto gateways = static_cast<std::uint64_t>(std::count_if(
        nodes.begin(), nodes.end(), [](const auto& n) { return n.starts_with("gateway"); }));
    for (std::uint32_t i = 0; i < planned_; ++i) {
      sim_request r;
      r.prompt = make_prompt();
      r.gen.tokens_max = static_cast<std::uint32_t>(between(1, 60));
      r.gen.sampling = {rng_(), draw(2) == 0 ? 0.0F : 0.8F, 0, 1.0F};
      r.gateway = "gateway-" + std::to_string(between(1, gateways));
      const auto at = cluster_->now_ns() + static_cast<std::int64_t>(draw(1'500)) * ms;
      const bool cancel = draw(6) == 0;
      const auto cancel_after = static_cast<std::int64_t>(draw(200'000)) * 1'000;
      cluster_->at(at, [this, r, cancel, cancel_after] {
        const auto index = cluster_->client().submit(r);
        ++submitted_;
        if (cancel) {
          cluster_->at(cluster_->now_ns() + cancel_after,
                       [this, index] { cluster_->client().cancel(index); });
        }
      });
    }
  }

  void plan_faults() {
    report_.faults = static_cast<std::uint32_t>(between(options_.faults_min, options_.faults_max));
    for (std::uint32_t i = 0; i < report_.faults; ++i) {
      plan_fault(cluster_->now_ns() + static_cast<std::int64_t>(draw(2'000)) * ms);
    }
  }

  void plan_fault(std::int64_t at) {
    const auto nodes = cluster_->nodes();
    const auto node = nodes[draw(nodes.size())];
    const auto other = nodes[draw(nodes.size())];
    const auto later = at + static_cast<std::int64_t>(between(20, 1'200)) * ms;
    auto& network = cluster_->network();
    const auto note = [&](const std::string& what) {
      report_.plan.push_back(what + " at " + std::to_string((at - cluster_->now_ns()) / ms) +
                             " ms for " + std::to_string((later - at) / ms) + " ms");
    };
    switch (draw(5)) {
      case 0:
        note("kill " + node);
        cluster_->at(at, [this, node] { cluster_->kill(node); });
        cluster_->at(later, [this, node] { cluster_->restart(node); });
        break;
      case 1:
        note("freeze " + node);
        cluster_->at(at, [this, node] { cluster_->freeze(node); });
        cluster_->at(later, [this, node] { cluster_->thaw(node); });
        break;
      case 2:
        note("partition " + node + " " + other);
        cluster_->at(at, [&network, node, other] { network.partition(node, other); });
        cluster_->at(later, [&network, node, other] { network.heal(node, other); });
        break;
      default:
        note("drop " + node + " " + other);
        cluster_->at(at, [&network, node, other] { network.drop(node, other); });
        break;
    }
  }

  void heal() {
    const auto nodes = cluster_->nodes();
    for (const auto& a : nodes) {
      cluster_->thaw(a);
      cluster_->restart(a);
      for (const auto& b : nodes) {
        cluster_->network().heal(a, b);
      }
    }
  }

  std::vector<gpu::token_id> undisturbed(const sim_request& r) const {
    return gpu::hash_model_tokens(r.prompt, r.gen.sampling, room_limited(r), hash_);
  }

  std::uint32_t room_limited(const sim_request& r) const {
    const auto room =
        options_.model->geometry().context_max - static_cast<std::uint32_t>(r.prompt.size());
    return std::min(r.gen.tokens_max, room);
  }

  /// The signature of every handoff equals a recount from its tokens.
  void check_handoff(const messages::frame& frame) {
    auto message = frame.root();
    if (message.which() != wire::Message::HANDOFF) {
      return;
    }
    auto handoff = message.getHandoff();
    const auto label = actors::read(handoff.getLabel());
    const auto& request = cluster_->client().requests().at(std::stoul(label.substr(1)));
    auto tokens = request.prompt;
    const auto answer = undisturbed(request);
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    const auto& geometry = options_.model->geometry();
    std::vector<std::uint16_t> choices;
    for (std::uint32_t t = 0; t < handoff.getTokenCount(); ++t) {
      for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) {
        const auto experts = gpu::hash_choices(geometry, tokens.at(t), layer);
        choices.insert(choices.end(), experts.begin(), experts.end());
      }
    }
    const auto expected =
        gpu::count_choices(choices, geometry.layers, geometry.experts, geometry.experts_per_token);
    const auto signature = handoff.getSignature();
    if (signature.size() != expected.size() * sizeof(std::uint16_t) ||
        std::memcmp(signature.begin(), expected.data(), signature.size()) != 0) {
      violation(label + ": the signature of its handoff differs from the recount");
    }
    ++report_.handoffs_checked;
  }

  void check_requests() {
    const auto& requests = cluster_->client().requests();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      check_request("q" + std::to_string(i), requests[i]);
    }
    if (submitted_ != planned_) {
      violation("only " + std::to_string(submitted_) + " of the planned requests were sent");
    }
  }

  void check_request(const std::string& name, const sim_request& r) {
    const auto expected = undisturbed(r);
    if (!r.violation.empty()) {
      violation(name + ": " + r.violation);
    }
    if (r.tokens.size() > expected.size() ||
        !std::equal(r.tokens.begin(), r.tokens.end(), expected.begin())) {
      violation(name + ": its tokens differ from the undisturbed ones");
      return;
    }
    switch (r.finish) {
      case wire::FinishReason::EOS:
      case wire::FinishReason::LENGTH:
        ++report_.completed;
        report_.retried += r.attempts > 1 ? 1 : 0;
        if (r.tokens.size() != expected.size()) {
          violation(name + ": it ended after " + std::to_string(r.tokens.size()) + " of " +
                    std::to_string(expected.size()) + " tokens");
        }
        break;
      case wire::FinishReason::CANCELLED:
        ++report_.cancelled;
        if (!r.cancelled) {
          violation(name + ": it was cancelled by nobody");
        }
        break;
      case wire::FinishReason::ERROR:
        ++report_.refused;
        if (r.error.empty()) {
          violation(name + ": it failed without a reason");
        }
        break;
      default:
        violation(name + ": it never ended");
    }
  }

  /// Every lease released, every block free or cached, all loads and queues zero.
  void check_rest() {
    const auto nodes = cluster_->nodes();
    const auto statuses = cluster_->status();
    for (const auto& node : nodes) {
      const auto found = statuses.find(node);
      if (found == statuses.end()) {
        violation(node + " does not answer at rest");
        continue;
      }
      for (const auto* zero : {"in_flight", "waiting", "running", "leases", "pulling", "requests",
                               "held", "depth", "blocks_pinned"}) {
        const auto count = found->second.find(zero);
        if (count != found->second.end() && count->second != 0) {
          violation(node + " has " + zero + " = " + std::to_string(count->second) + " at rest");
        }
      }
      const auto total = found->second.find("blocks_total");
      if (total != found->second.end() &&
          found->second.at("blocks_free") + found->second.at("blocks_cached") != total->second) {
        violation(node + " has lost blocks");
      }
    }
    for (const auto& fault : cluster_->actor_faults()) {
      violation("actor failed: " + fault);
    }
  }

  fault_run_options options_;
  gpu::hash_runner_options hash_;
  std::mt19937_64 rng_;
  fault_run_report report_;
  std::unique_ptr<sim_cluster> cluster_;
  std::uint32_t planned_ = 0;
  std::uint32_t submitted_ = 0;
};

}  // namespace

fault_run_report run_faults(const fault_run_options& options) {
  return fault_run(options).run();
}

}  // namespace eldr::cluster
