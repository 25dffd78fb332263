/// `eldr bench router`: how many requests a second the router places, without a network.

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>

#include "actors/router/router.hpp"
#include "apps/bench_commands.hpp"
#include "apps/bench_report.hpp"
#include "messages/message_view.hpp"

namespace eldr::apps {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t batch_size = 64;  ///< Requests between two reports of every worker.
constexpr std::size_t prompt_tokens = 256;
constexpr std::uint64_t gateway_incarnation = 7;
constexpr messages::session_id gateway_session = 1;

struct router_options : bench_options {
  std::vector<std::string> policies;
  std::vector<std::uint32_t> workers{4, 40};
  std::uint32_t layers = 48;
  std::uint32_t experts = 128;
  std::size_t batches = 400;
};

constexpr std::uint32_t experts_per_token = 8;

/// An artifact of random centroids, one slot per worker: what a choice costs does not depend on
/// where they point.
std::shared_ptr<const fit::artifact> drawn_artifact(const router_options& o, std::uint32_t slots) {
  fit::artifact a;
  a.layers = o.layers;
  a.experts = o.experts;
  a.experts_per_token = 8;
  a.block_tokens = 16;
  a.slots = slots;
  a.mask.resize(o.layers);
  std::iota(a.mask.begin(), a.mask.end(), 0u);
  const std::size_t cells = std::size_t{o.layers} * o.experts;
  std::mt19937 random(1);
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    double square = 0;
    std::vector<float> centroid(cells);
    for (float& x : centroid) {
      x = static_cast<float>(random() % 1000);
      square += double{x} * double{x};
    }
    for (float& x : centroid) {
      x /= static_cast<float>(std::sqrt(square));
    }
    a.centroids.insert(a.centroids.end(), centroid.begin(), centroid.end());
  }
  a.vanilla_centroids = a.centroids;
  const float mean = 8.0F / static_cast<float>(o.experts);
  a.cluster_patterns.assign(slots * cells, mean);
  a.global_pattern.assign(cells, mean);
  a.labels = {{"a", 10}, {"b", 10}};
  return std::make_shared<const fit::artifact>(std::move(a));
}

actors::policy_options policy_options_of(const router_options& o, std::uint32_t workers) {
  actors::policy_options options;
  options.decode_nodes = workers;
  options.artifact = drawn_artifact(o, workers);
  options.layers = o.layers;
  options.experts = o.experts;
  options.experts_per_token = 8;
  return options;
}

/// Microseconds of `body`, per piece of work.
template <class Body>
double us_each(std::size_t pieces, Body body) {
  const auto begin = steady_clock::now();
  body();
  const std::chrono::duration<double, std::micro> time = steady_clock::now() - begin;
  return time.count() / static_cast<double>(pieces);
}

/// A message as if it had been received.
class built_frame final : public messages::frame {
 public:
  built_frame(messages::outgoing_ptr message, messages::session_id session)
      : message_(std::move(message)), session_(session), view_(segments()) {}
  wire::Message::Reader root() const override { return view_.root(); }
  std::size_t bytes() const noexcept override { return message_->bytes(); }
  std::uint64_t session() const noexcept override { return session_; }

 private:
  std::span<const kj::ArrayPtr<const capnp::word>> segments() {
    const auto parts = message_->arena().getSegmentsForOutput();
    return {parts.begin(), parts.size()};
  }

  messages::outgoing_ptr message_;
  messages::session_id session_;
  messages::message_view view_;
};

/// Takes what the router sends, and remembers the tasks.
class task_sink final : public messages::transport {
 public:
  struct task {
    messages::session_id worker = 0;
    std::uint64_t number = 0;
    actors::attempt_key key;
  };
  std::vector<task> tasks;

  messages::send_result send(messages::session_id session, messages::outgoing_ptr out) override {
    auto root = out->root();
    if (root.isDecodeTask()) {
      auto sent = root.getDecodeTask();
      tasks.push_back({session, sent.getTaskNumber(), actors::read(sent.getAttempt().asReader())});
    } else if (root.isPrefillTask()) {
      auto sent = root.getPrefillTask();
      tasks.push_back({session, sent.getTaskNumber(), actors::read(sent.getAttempt().asReader())});
    } else if (root.isFailed()) {
      throw std::runtime_error("the router refused a request of the benchmark");
    }
    return messages::send_result::queued;
  }

  std::span<std::byte> allocate_region(std::size_t) override { return {}; }
  void start(messages::transport_events&) override {}
  void dial(const std::string&) override {}
  void close(messages::session_id, const std::string& detail) override {
    throw std::runtime_error("the router closed a session of the benchmark: " + detail);
  }
  void get(messages::session_id, std::uint32_t, std::vector<messages::get_range>,
           messages::get_callback) override {}
  void stop() override {}
  messages::transport_counters counters() const override { return {}; }
  const messages::identity& self() const noexcept override { return self_; }

 private:
  messages::identity self_;
};

/// What a router sees of a node.
class router_world final : public actors::context {
 public:
  std::int64_t now_ns() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               steady_clock::now().time_since_epoch())
        .count();
  }
  std::uint64_t random() override { return 1; }
  task_sink& transport() override { return sink_; }
  actors::actor_ref self() override { return nullptr; }
  void wake_at(std::int64_t) override {}
  actors::actor_ref spawn(const std::string&, std::unique_ptr<actors::core>) override {
    return nullptr;
  }
  void quit() override {}

 private:
  task_sink sink_;
};

/// An artifact of the model's shape with random centroids over half of its layers: scoring costs
/// what it costs with a fitted one.
std::shared_ptr<const fit::artifact> random_artifact(const router_options& o, std::uint32_t slots) {
  auto a = std::make_shared<fit::artifact>();
  a->layers = o.layers;
  a->experts = o.experts;
  a->experts_per_token = experts_per_token;
  a->block_tokens = 16;
  a->slots = slots;
  for (std::uint32_t layer = 0; layer < o.layers; layer += 2) {
    a->mask.push_back(layer);
  }
  std::mt19937_64 rng(1);
  const auto random_unit = [&](std::size_t cells) {
    std::vector<float> v(cells * slots);
    for (auto& x : v) {
      x = static_cast<float>(rng() % 1000) / 1000.0F / std::sqrt(static_cast<float>(cells));
    }
    return v;
  };
  a->centroids = random_unit(a->mask.size() * o.experts);
  a->vanilla_centroids = random_unit(a->mask.size() * o.experts);
  a->cluster_patterns.assign(std::size_t{slots} * o.layers * o.experts, 0.06F);
  a->global_pattern.assign(std::size_t{o.layers} * o.experts, 0.06F);
  a->labels = {{"a", 500}, {"b", 500}};
  return a;
}

actors::router_spec spec_for(const router_options& o, std::uint32_t decoders) {
  actors::router_spec spec;
  spec.policy.layers = o.layers;
  spec.policy.experts = o.experts;
  spec.policy.experts_per_token = experts_per_token;
  spec.policy.decode_nodes = decoders;
  spec.policy.artifact = random_artifact(o, decoders);
  return spec;
}

/// A router with its workers, and the requests of a batch.
class router_rig {
 public:
  router_rig(const router_options& o, const std::string& policy, std::uint32_t decoders)
      : options_(o), router_(settings_for(policy), spec_for(o, decoders)) {
    router_.start(world_);
    add_peer("gateway", "gateway", gateway_session, gateway_incarnation);
    for (std::uint32_t i = 0; i < std::max(1u, decoders / 2); ++i) {
      add_worker(fmt::format("prefill-{}", i + 1), "prefill");
    }
    for (std::uint32_t i = 0; i < decoders; ++i) {
      add_worker(fmt::format("decode-{}", i + 1), "decode", static_cast<std::int32_t>(i));
    }
  }

  struct costs {
    double submit_us = 0;   ///< A Submit placed on a prefill worker.
    double handoff_us = 0;  ///< A Handoff placed on a decode worker.
    double report_us = 0;   ///< A request's share of its workers' QueueDepth reports.
    double floor_us = 0;    ///< The messages of a handoff alone, written without any choice.
  };
  /// Takes a batch of requests through the router.
  costs run_batch() {
    costs c;
    std::vector<actors::event> submits;
    std::vector<actors::event> handoffs;
    for (std::size_t i = 0; i < batch_size; ++i) {
      const actors::attempt_key key{{gateway_incarnation, ++requests_}, 1};
      submits.push_back(received(gateway_session, make_submit(key)));
      handoffs.push_back(received(first_worker, make_handoff(key)));
    }
    c.submit_us = us_each(batch_size, [&] { handle(submits); });
    auto prefill_reports = reports();
    c.handoff_us = us_each(batch_size, [&] { handle(handoffs); });
    auto decode_reports = reports();
    c.report_us = us_each(batch_size, [&] {
      handle(prefill_reports);
      handle(decode_reports);
    });
    c.floor_us = us_each(batch_size, [&] {
      for (auto& e : handoffs) {
        write_answers(std::get<actors::incoming>(e).frame->root().getHandoff());
      }
    });
    return c;
  }

 private:
  static constexpr messages::session_id first_worker = 2;

  static actors::settings settings_for(const std::string& policy) {
    actors::settings s;
    s.policy = policy;
    return s;
  }

  static actors::router_spec spec_for(const router_options& o, std::uint32_t decoders) {
    actors::router_spec spec;
    spec.policy = policy_options_of(o, decoders);
    return spec;
  }

  void add_peer(const std::string& node, const std::string& role, messages::session_id session,
                std::uint64_t incarnation) {
    messages::peer peer;
    peer.session = session;
    peer.id.node = node;
    peer.id.role = role;
    peer.id.incarnation = incarnation;
    peer.id.fingerprint = 1;
    peers_[session] = std::make_shared<const messages::peer>(std::move(peer));
    actors::event up = actors::peer_up{peers_[session]};
    router_.handle(world_, up);
  }
  void add_worker(const std::string& node, const std::string& role, std::int32_t slot = -1) {
    const auto session = first_worker + workers_++;
    slots_[session] = slot;
    add_peer(node, role, session, 100 + session);
    std::vector<actors::event> first;
    first.push_back(report(session, 0, {}));
    handle(first);
  }

  actors::event received(messages::session_id from, messages::outgoing_ptr message) const {
    return actors::incoming{std::make_shared<const built_frame>(std::move(message), from),
                            peers_.at(from)};
  }
  void handle(std::vector<actors::event>& events) {
    for (auto& e : events) {
      router_.handle(world_, e);
    }
  }

  messages::outgoing_ptr make_submit(const actors::attempt_key& key) const {
    auto out = actors::make_message(wire::ActorKind::ROUTER, prompt_tokens / 2);
    auto submit = out->root().initSubmit();
    actors::write(submit.initAttempt(), key);
    std::vector<std::uint32_t> tokens(prompt_tokens, static_cast<std::uint32_t>(requests_));
    actors::write(submit.initTokens(prompt_tokens), tokens);
    actors::write(submit.initSampling(), {.tokens_max = 64, .sampling = {}});
    return out;
  }
  messages::outgoing_ptr make_handoff(const actors::attempt_key& key) const {
    const auto cells = options_.layers * options_.experts;
    auto out = actors::make_message(wire::ActorKind::ROUTER, cells / 4 + 64);
    auto handoff = out->root().initHandoff();
    actors::write(handoff.initAttempt(), key);
    actors::kv_ref kv{"prefill-1", 102, requests_, 0, std::vector<gpu::block_id>(16, 3), 256};
    actors::write(handoff.initKv(), kv);
    // Every second expert, as often as not: what a signature costs does not depend on its values.
    auto signature = handoff.initSignature(cells * 2);
    for (std::uint32_t i = 0; i < cells; i += 2) {
      signature[2 * i] = static_cast<kj::byte>(1 + (i + requests_) % 31);
    }
    actors::write(handoff.initSampling(), {.tokens_max = 64, .sampling = {}});
    handoff.setTokenCount(prompt_tokens);
    handoff.setLabel(requests_ % 2 == 0 ? "a" : "b");
    handoff.setFingerprint(1);
    return out;
  }

  /// Reports of all workers that got tasks: these run now, those of the batch before have ended.
  std::vector<actors::event> reports() {
    std::map<messages::session_id, std::vector<task_sink::task>> by_worker;
    for (auto& task : world_.transport().tasks) {
      by_worker[task.worker].push_back(task);
    }
    world_.transport().tasks.clear();
    std::vector<actors::event> events;
    for (auto& [worker, tasks] : by_worker) {
      events.push_back(report(worker, tasks.back().number, running_[worker], tasks.size()));
      running_[worker] = std::move(tasks);
    }
    return events;
  }
  actors::event report(messages::session_id worker, std::uint64_t last_processed,
                       const std::vector<task_sink::task>& ended, std::size_t running = 0) const {
    auto out = actors::make_message(wire::ActorKind::ROUTER, ended.size() * 8);
    auto depth = out->root().initQueueDepth();
    depth.setRunning(static_cast<std::uint32_t>(running));
    depth.setLastProcessed(last_processed);
    auto keys = depth.initEnded(static_cast<unsigned>(ended.size()));
    for (unsigned i = 0; i < ended.size(); ++i) {
      actors::write(keys[i], ended[i].key);
    }
    depth.setFreeBlocks(1u << 20);
    depth.setTotalBlocks(1u << 20);
    depth.setSlot(slots_.at(worker));
    return received(worker, std::move(out));
  }

  /// Placed and DecodeTask of a handoff, as the router writes them.
  void write_answers(wire::Handoff::Reader in) const {
    const auto key = actors::read(in.getAttempt());
    const auto placed = actors::make_message(wire::ActorKind::GATEWAY);
    auto to_request = placed->root().initPlaced();
    actors::write(to_request.initAttempt(), key);
    to_request.setNode("decode-1");
    const auto task = actors::make_message(wire::ActorKind::DECODER,
                                           actors::words_for_u32(in.getKv().getBlocks().size()));
    auto to_worker = task->root().initDecodeTask();
    actors::write(to_worker.initAttempt(), key);
    to_worker.setKv(in.getKv());
    to_worker.setSampling(in.getSampling());
  }

  const router_options& options_;
  router_world world_;
  actors::router_core router_;
  std::map<messages::session_id, actors::peer_ptr> peers_;
  std::map<messages::session_id, std::int32_t> slots_;
  std::map<messages::session_id, std::vector<task_sink::task>> running_;
  std::uint64_t workers_ = 0;
  std::uint64_t requests_ = 0;
};

/// Nanoseconds of the policy's choice alone.
double choose_ns(const router_options& o, const std::string& name, std::uint32_t workers) {
  auto options = spec_for(o, workers).policy;
  options.decode_nodes = workers;
  const auto policy = actors::make_policy(name, options);
  actors::decision why;
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < workers; ++i) {
    names.push_back(fmt::format("decode-{}", i + 1));
  }
  std::vector<actors::decode_candidate> candidates;
  for (std::uint32_t i = 0; i < workers; ++i) {
    candidates.push_back({names[i], static_cast<std::int32_t>(i), i % 5, 1024});
  }
  const std::vector<std::byte> signature(std::size_t{o.layers} * o.experts * 2, std::byte{1});
  std::vector<double> us;
  for (std::size_t batch = 0; batch < o.batches; ++batch) {
    us.push_back(us_each(batch_size, [&] {
      for (std::size_t i = 0; i < batch_size; ++i) {
        const actors::routing_request request{{{1, i}, 1}, signature, prompt_tokens, {}};
        // Its result is the next one's input: no choice can be left out.
        candidates[policy->choose(request, candidates, why)].in_flight =
            static_cast<std::uint32_t>(i % 7);
      }
    }));
  }
  return median(std::move(us)) * 1e3;
}

void measure(const router_options& o, const std::string& policy, std::uint32_t workers,
             bench_report& report) {
  show_progress(fmt::format("{}, {} decode workers ...", policy, workers));
  router_rig rig(o, policy, workers);
  std::vector<double> submits;
  std::vector<double> handoffs;
  std::vector<double> reports;
  std::vector<double> floors;
  rig.run_batch();  // Warms up.
  for (std::size_t i = 0; i < o.batches; ++i) {
    const auto c = rig.run_batch();
    submits.push_back(c.submit_us);
    handoffs.push_back(c.handoff_us);
    reports.push_back(c.report_us);
    floors.push_back(c.floor_us);
  }
  const double handoff = median(handoffs);
  const double request = median(submits) + handoff + median(reports);
  const double floor = median(floors);
  report.add({policy, static_cast<double>(workers), choose_ns(o, policy, workers), median(submits),
              handoff, median(reports), floor, handoff / floor, 1e6 / handoff, 1e6 / request});
}

int run(router_options o) {
  if (o.quick) {
    o.batches = 5;
  }
  if (o.policies.empty()) {
    o.policies.assign(actors::policy_names().begin(), actors::policy_names().end());
  }
  bench_report report("router", o,
                      {{"policy", "policy"},
                       {"workers", "workers", 0},
                       {"choose_ns", "choose ns", 0},
                       {"submit_us", "submit us", 2},
                       {"handoff_us", "handoff us", 2},
                       {"report_us", "report us", 2},
                       {"floor_us", "floor us", 2},
                       {"ratio", "of floor", 2},
                       {"decisions_per_s", "decisions/s", 0},
                       {"requests_per_s", "requests/s", 0}});
  for (const auto& policy : o.policies) {
    for (const auto workers : o.workers) {
      measure(o, policy, workers, report);
    }
  }
  report.note(fmt::format(
      "Medians over {} batches of {} requests on one thread, signatures of {} x {}. A decision is "
      "a handoff placed; the floor writes its two messages without choosing. A request is a "
      "submit, a handoff and its share of the workers' reports.",
      o.batches, batch_size, o.layers, o.experts));
  report.print();
  return 0;
}

}  // namespace

void add_bench_router(CLI::App& bench, command& chosen) {
  auto o = std::make_shared<router_options>();
  CLI::App* app = bench.add_subcommand(
      "router", "How many requests a second the router places, without a network");
  add_bench_options(*app, *o);
  app->add_option("--policy", o->policies, "Routing policies, with commas; all if not given")
      ->delimiter(',');
  app->add_option("--workers", o->workers, "Decode workers; several with commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--layers", o->layers, "Of the signature")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app->add_option("--experts", o->experts, "Of the signature, per layer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--batches", o->batches, "Batches of 64 requests")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace eldr::apps
