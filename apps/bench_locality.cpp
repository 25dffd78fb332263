/// `eldr bench locality`: what routing by expert locality does to the batches of a live cluster.

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>

#include "apps/bench_cluster.hpp"
#include "apps/bench_commands.hpp"
#include "apps/bench_report.hpp"
#include "apps/locality_sample.hpp"
#include "apps/prompt_file.hpp"
#include "apps/quantile.hpp"
#include "cluster/client.hpp"
#include "gpu/model_config.hpp"
#include "gpu/model_files.hpp"

namespace eldr::apps {
namespace {

using std::chrono::steady_clock;

struct locality_options : bench_options {
  std::filesystem::path file;  ///< Of a running cluster.
  std::filesystem::path up;
  std::vector<std::filesystem::path> prompts;
  std::vector<std::string> policies{"jsq", "eldr", "union"};
  std::uint32_t seeds = 5;
  std::uint32_t requests = 400;
  double rate = 40;  ///< Arrivals a second.
  std::uint32_t tokens_max = 96;
  std::uint32_t candidates_min = 0;
  double tau = -1;
};

/// One policy under one seed.
struct run_result {
  sampled_batches batches;
  double step_distinct = 0;  ///< From the decoders: experts per layer and step, weighted by batch.
  double batch = 0;          ///< Mean sequences of a step, likewise.
  double tpot_p50_ms = 0;
  double tpot_p99_ms = 0;
  double ttft_p50_ms = 0;
  std::size_t failed = 0;
  std::vector<std::vector<gpu::token_id>> tokens;
};

double now_s() {
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

class locality_bench {
 public:
  locality_bench(const locality_options& o, const cluster::manifest& m)
      : options_(o), manifest_(m), client_(m) {
    for (const auto& file : o.prompts) {
      for (auto& p : read_prompts(file)) {
        if (p.split.empty() || p.split == "evaluation") {
          prompts_.push_back(std::move(p));
        }
      }
    }
    if (prompts_.empty()) {
      throw std::runtime_error("the prompt files have no lines of split 'evaluation'");
    }
    const auto path = m.model_path();
    geometry_ =
        gpu::parse_config(gpu::open_model(path ? path->string() : std::string())->config_json())
            .geometry;
    for (const auto& node : m.nodes) {
      client_.attach(node, std::chrono::seconds(5));
    }
    gateway_ = m.with_role(cluster::node_role::gateway).front()->name;
  }

  void set_policy(const std::string& policy) {
    for (const auto* router : manifest_.with_role(cluster::node_role::router)) {
      client_.set_policy(router->name, policy, static_cast<float>(options_.tau),
                         options_.candidates_min, {});
      const auto answer = next_of<cluster::policy_state>();
      if (!answer.error.empty()) {
        throw std::runtime_error(answer.error);
      }
    }
  }

  /// Open loop: arrivals, order and sampling are drawn from the seed alone, whatever the policy.
  run_result run(std::uint64_t seed, interruption& stop) {
    const auto before = decoder_totals();
    std::mt19937_64 arrivals(seed * 3 + 1);
    std::mt19937_64 order(seed * 3 + 2);
    std::exponential_distribution<double> gap(options_.rate);
    std::vector<live> requests(options_.requests);
    std::map<std::uint64_t, std::size_t> running;
    double next_arrival = now_s();
    std::size_t sent = 0;
    std::size_t done = 0;
    while (done < requests.size()) {
      stop.check();
      for (; sent < requests.size() && now_s() >= next_arrival;
           ++sent, next_arrival += gap(arrivals)) {
        running[send(seed, sent, order() % prompts_.size())] = sent;
      }
      const auto wait = sent < requests.size() ? std::max(next_arrival - now_s(), 0.0) : 1.0;
      const auto event =
          client_.next(std::chrono::milliseconds(static_cast<int>(std::ceil(wait * 1e3))));
      const auto* piece = event ? std::get_if<cluster::completion_piece>(&*event) : nullptr;
      if (piece != nullptr) {
        done += take(requests[running.at(piece->request)], *piece) ? 1 : 0;
      } else if (event && std::holds_alternative<cluster::node_lost>(*event)) {
        throw std::runtime_error("a node went away during the run");
      }
    }
    return evaluate(requests, seed, before);
  }

 private:
  struct live {
    observed_request seen;
    std::vector<gpu::token_id> tokens;
    double ttft_ms = 0;
    double total_ms = 0;
    bool failed = false;
  };
  struct totals {
    double sequence_steps = 0;
    double sequence_experts = 0;
    double steps = 0;
  };

  std::uint64_t send(std::uint64_t seed, std::size_t index, std::size_t prompt) {
    cluster::completion_request request;
    request.text = prompts_[prompt].text;
    request.label = prompts_[prompt].label;
    request.gen.tokens_max = options_.tokens_max;
    request.gen.sampling = {seed * 1'000'000 + index, 0.8F, 0, 0.95F};
    request.has_seed = true;
    request.record = true;
    return client_.submit(gateway_, request);
  }

  bool take(live& r, const cluster::completion_piece& piece) {
    r.tokens.insert(r.tokens.end(), piece.ids.begin(), piece.ids.end());
    r.seen.choices.insert(r.seen.choices.end(), piece.choices.begin(), piece.choices.end());
    r.seen.token_s.insert(r.seen.token_s.end(), piece.ids.size(), now_s());
    if (piece.finish == wire::FinishReason::NONE) {
      return false;
    }
    r.failed = piece.finish == wire::FinishReason::ERROR;
    r.seen.decode_node = piece.decode_node;
    r.seen.prompt_tokens = piece.prompt_tokens;
    r.ttft_ms = static_cast<double>(piece.ttft_us) / 1e3;
    r.total_ms = static_cast<double>(piece.total_us) / 1e3;
    return true;
  }

  run_result evaluate(const std::vector<live>& requests, std::uint64_t seed, const totals& before) {
    run_result out;
    std::vector<observed_request> seen;
    std::vector<double> tpot;
    std::vector<double> ttft;
    for (const auto& r : requests) {
      out.failed += r.failed ? 1 : 0;
      out.tokens.push_back(r.tokens);
      seen.push_back(r.seen);
      ttft.push_back(r.ttft_ms);
      if (r.tokens.size() > 1) {
        tpot.push_back((r.total_ms - r.ttft_ms) / static_cast<double>(r.tokens.size() - 1));
      }
    }
    out.batches =
        sample_batches(seen, geometry_.layers, geometry_.experts, geometry_.experts_per_token,
                       manifest_.with_role(cluster::node_role::decode).size(), 0.02, 8, seed);
    const auto after = decoder_totals();
    const auto weight = after.sequence_steps - before.sequence_steps;
    out.step_distinct = (after.sequence_experts - before.sequence_experts) / weight;
    out.batch = weight / (after.steps - before.steps);
    out.tpot_p50_ms = quantile(tpot, 0.5);
    out.tpot_p99_ms = quantile(tpot, 0.99);
    out.ttft_p50_ms = quantile(ttft, 0.5);
    return out;
  }

  totals decoder_totals() {
    totals sum;
    const auto decodes = manifest_.with_role(cluster::node_role::decode);
    for (const auto* node : decodes) {
      client_.ask_status(node->name);
    }
    for (std::size_t i = 0; i < decodes.size(); ++i) {
      for (const auto& [name, value] : next_of<cluster::node_status>().counts) {
        sum.sequence_steps += name == "sequence_steps_total" ? static_cast<double>(value) : 0;
        sum.sequence_experts += name == "sequence_experts_total" ? static_cast<double>(value) : 0;
        sum.steps += name == "steps_total" ? static_cast<double>(value) : 0;
      }
    }
    return sum;
  }

  template <class T>
  T next_of() {
    const auto deadline = now_s() + 10;
    while (now_s() < deadline) {
      auto event = client_.next(std::chrono::milliseconds(100));
      if (event && std::holds_alternative<T>(*event)) {
        return std::get<T>(std::move(*event));
      }
    }
    throw std::runtime_error("a node did not answer in time");
  }

  const locality_options& options_;
  const cluster::manifest& manifest_;
  cluster::client client_;
  std::vector<prompt_line> prompts_;
  gpu::model_geometry geometry_;
  std::string gateway_;
};

/// Mean over the seeds and half the width of its 95 % interval (Student's t).
std::string with_interval(const std::vector<double>& values, int digits) {
  const auto n = static_cast<double>(values.size());
  double mean = 0;
  for (double v : values) {
    mean += v / n;
  }
  double squares = 0;
  for (double v : values) {
    squares += (v - mean) * (v - mean);
  }
  if (values.size() < 2) {
    return fmt::format("{:.{}f}", mean, digits);
  }
  static constexpr double t[] = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26};
  const auto quantile_t = values.size() - 2 < std::size(t) ? t[values.size() - 2] : 2.0;
  return fmt::format("{:.{}f} ± {:.{}f}", mean, digits,
                     quantile_t * std::sqrt(squares / (n - 1) / n), digits);
}

void add_row(bench_report& report, const std::string& policy, const std::vector<run_result>& runs,
             const std::vector<run_result>& base) {
  const auto over_seeds = [&](auto value) {
    std::vector<double> values;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      values.push_back(value(runs[i], base[i]));
    }
    return values;
  };
  bool same = true;
  std::size_t failed = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    same = same && runs[i].tokens == base[i].tokens;
    failed += runs[i].failed;
  }
  report.add({policy, with_interval(over_seeds([](auto& r, auto&) { return r.step_distinct; }), 2),
              with_interval(over_seeds([](auto& r, auto& b) {
                              return 100 * (r.step_distinct / b.step_distinct - 1);
                            }),
                            1),
              with_interval(over_seeds([](auto& r, auto&) {
                              return 100 * (r.batches.distinct / r.batches.random_distinct - 1);
                            }),
                            1),
              with_interval(over_seeds([](auto& r, auto&) { return r.batch; }), 1),
              with_interval(over_seeds([](auto& r, auto&) { return r.batches.spread; }), 2),
              with_interval(over_seeds([](auto& r, auto&) { return r.tpot_p50_ms; }), 2),
              with_interval(over_seeds([](auto& r, auto&) { return r.tpot_p99_ms; }), 2),
              std::string(failed > 0 ? fmt::format("{} failed", failed)
                          : same     ? "identical"
                                     : "DIFFERENT")});
}

int run(const locality_options& given) {
  auto o = given;
  if (o.quick) {
    o.seeds = 1;
    o.requests = std::min(o.requests, 40u);
  }
  interruption stop;
  std::optional<bench_cluster> own;
  if (!o.up.empty()) {
    own.emplace(o.up, stop);
  }
  const auto manifest = own ? own->manifest() : cluster::load_manifest(o.file);
  locality_bench bench(o, manifest);
  std::map<std::string, std::vector<run_result>> runs;
  for (std::uint64_t seed = 1; seed <= o.seeds; ++seed) {
    for (const auto& policy : o.policies) {
      show_progress(fmt::format("seed {} of {}, {} ...", seed, o.seeds, policy));
      bench.set_policy(policy);
      runs[policy].push_back(bench.run(seed, stop));
    }
  }
  bench_report report("locality", o,
                      {{"policy", "policy"},
                       {"experts_per_layer_step", "experts/layer/step"},
                       {"change_percent", "vs " + o.policies.front() + " %"},
                       {"vs_random_draw_percent", "vs random draw %"},
                       {"batch", "batch"},
                       {"spread", "max/mean load"},
                       {"tpot_p50_ms", "TPOT p50 ms"},
                       {"tpot_p99_ms", "TPOT p99 ms"},
                       {"tokens", "tokens"}});
  for (const auto& policy : o.policies) {
    add_row(report, policy, runs.at(policy), runs.at(o.policies.front()));
  }
  report.note(fmt::format(
      "{} decode workers, {} requests at {} a second, {} seeds; experts weighted by batch; "
      "± is a 95 % interval over seeds; 'random draw': as many requests drawn from all in flight",
      manifest.with_role(cluster::node_role::decode).size(), o.requests, o.rate, o.seeds));
  report.print();
  bool same = true;
  for (const auto& [policy, results] : runs) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      same = same && results[i].tokens == runs.at(o.policies.front())[i].tokens;
    }
  }
  return same ? 0 : 1;
}

}  // namespace

void add_bench_locality(CLI::App& bench, command& chosen) {
  auto o = std::make_shared<locality_options>();
  CLI::App* app = bench.add_subcommand(
      "locality", "Distinct experts, load and speed by routing policy, on a live cluster");
  add_bench_options(*app, *o);
  add_manifest_option(*app, o->file);
  app->add_option("--up", o->up, "Start the cluster of this manifest for the run");
  app->add_option("--prompts", o->prompts,
                  "JSON lines; those of split \"evaluation\", if they name one")
      ->required();
  app->add_option("--policy", o->policies, "Policies, the first is what others are compared with")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--seeds", o->seeds, "Runs of each policy")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app->add_option("--requests", o->requests, "Per run")
      ->check(CLI::Range(10, 100'000))
      ->capture_default_str();
  app->add_option("--rate", o->rate, "Arrivals a second")
      ->check(CLI::Range(0.1, 1e5))
      ->capture_default_str();
  app->add_option("--max-tokens", o->tokens_max, "Per answer")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  app->add_option("--tau", o->tau, "Band; as in the manifest if not given")
      ->check(CLI::Range(0.0, 2.0));
  app->add_option("--candidates-min", o->candidates_min, "Likewise")->check(CLI::Range(1, 1024));
  app->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace eldr::apps
