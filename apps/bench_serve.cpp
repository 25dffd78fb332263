/// `eldr bench serve`: requests through a whole cluster, against one process alone.

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>

#include "apps/bench_cluster.hpp"
#include "apps/bench_commands.hpp"
#include "apps/bench_report.hpp"
#include "apps/prompt_file.hpp"
#include "cluster/client.hpp"
#include "gpu/host_runner.hpp"
#include "gpu/local_generate.hpp"
#include "gpu/tokenizer.hpp"

namespace eldr::apps {
namespace {

using std::chrono::steady_clock;

struct serve_options : bench_options {
  std::filesystem::path file;  ///< Of a running cluster.
  std::filesystem::path up;
  bool demo = false;
  std::filesystem::path prompts;
  std::size_t requests = 128;
  std::vector<std::size_t> concurrency{1, 8};
  std::uint32_t tokens_max = 64;
  std::size_t prompt_words = 48;
  bool floor = true;
};

/// Words drawn by a fixed seed: no two prompts begin alike, so that the prefix cache finds nothing.
std::vector<std::string> drawn_prompts(const serve_options& o) {
  constexpr std::array<const char*, 16> words{"the",   "value",  "of",    "each",  "token", "in",
                                              "queue", "return", "when",  "found", "node",  "and",
                                              "first", "result", "price", "water"};
  std::mt19937 random(1);
  std::vector<std::string> prompts;
  for (std::size_t i = 0; i < o.requests; ++i) {
    std::string text = fmt::format("{}:", random());
    for (std::size_t w = 1; w < o.prompt_words; ++w) {
      text += std::string(" ") + words[random() % words.size()];
    }
    prompts.push_back(std::move(text));
  }
  return prompts;
}

std::vector<std::string> prompts_of(const serve_options& o) {
  if (o.prompts.empty()) {
    return drawn_prompts(o);
  }
  const auto lines = read_prompts(o.prompts);
  std::vector<std::string> prompts;
  for (std::size_t i = 0; i < o.requests; ++i) {
    prompts.push_back(lines[i % lines.size()].text);
  }
  return prompts;
}

struct answer_times {
  std::vector<double> ttft_ms;
  std::vector<double> tpot_ms;  ///< Of answers of more than one token.
  std::size_t tokens = 0;
  std::size_t failed = 0;
  std::string error;  ///< The last one.
  double time_s = 0;

  void add(double ttft_s, double rest_s, std::size_t count) {
    tokens += count;
    ttft_ms.push_back(ttft_s * 1e3);
    if (count > 1) {
      tpot_ms.push_back(rest_s * 1e3 / static_cast<double>(count - 1));
    }
  }
};

double seconds(steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// The same prompts, one at a time, in this process.
answer_times alone(const serve_options& o, const cluster::manifest& m,
                   const std::vector<std::string>& prompts, interruption& stop) {
  show_progress("one process alone ...");
  const auto path = m.model_path();
  const auto files = gpu::open_model(path ? path->string() : std::string());
  const gpu::tokenizer tokens(files->tokenizer_json());
  gpu::host_options host;
  host.kv = m.kv.dtype;
  host.block_tokens = m.kv.block_tokens;
  host.threads = m.engine_threads;
  const auto runner = gpu::make_host_runner(files, host);
  gpu::local_options options;
  options.tokens_max = o.tokens_max;
  answer_times times;
  const std::size_t count = std::min<std::size_t>(prompts.size(), 16);
  for (std::size_t i = 0; i < count; ++i) {
    stop.check();
    const auto result =
        gpu::local_generate(*runner, tokens.encode(prompts[i]), gpu::sampling{}, options);
    times.add(result.prefill_s, result.decode_s, result.tokens.size());
    times.time_s += result.prefill_s + result.decode_s;
  }
  return times;
}

/// Keeps so many requests under way at a gateway, as seen by a client.
class load {
 public:
  load(cluster::client& client, const std::string& gateway, const serve_options& o,
       interruption& stop)
      : client_(client), gateway_(gateway), options_(o), stop_(stop) {}

  answer_times run(const std::vector<std::string>& prompts, std::size_t concurrency) {
    answer_times times;
    std::map<std::uint64_t, request> running;
    const auto begin = steady_clock::now();
    for (std::size_t next = 0; next < prompts.size() || !running.empty();) {
      stop_.check();
      for (; next < prompts.size() && running.size() < concurrency; ++next) {
        running[submit(prompts[next])].sent = steady_clock::now();
      }
      const auto event = client_.next(std::chrono::milliseconds(200));
      if (event && take(*event, running, times)) {
        running.erase(std::get<cluster::completion_piece>(*event).request);
      }
    }
    times.time_s = seconds(steady_clock::now() - begin);
    return times;
  }

 private:
  struct request {
    steady_clock::time_point sent;
    std::optional<steady_clock::time_point> first;
    std::size_t tokens = 0;
  };

  std::uint64_t submit(const std::string& prompt) {
    cluster::completion_request out;
    out.text = prompt;
    out.gen.tokens_max = options_.tokens_max;
    out.has_seed = true;
    return client_.submit(gateway_, out);
  }
  /// Returns whether the event ends its request.
  bool take(const cluster::client_event& event, std::map<std::uint64_t, request>& running,
            answer_times& times) {
    if (const auto* lost = std::get_if<cluster::node_lost>(&event)) {
      throw std::runtime_error(
          fmt::format("the session with gateway '{}' ended: {}", lost->node, lost->why));
    }
    const auto* piece = std::get_if<cluster::completion_piece>(&event);
    const auto found = piece != nullptr ? running.find(piece->request) : running.end();
    if (found == running.end()) {
      return false;
    }
    const auto now = steady_clock::now();
    auto& r = found->second;
    r.tokens += piece->ids.size();
    if (!r.first && !piece->ids.empty()) {
      r.first = now;
    }
    if (piece->finish == wire::FinishReason::NONE) {
      return false;
    }
    if (piece->finish == wire::FinishReason::ERROR || !r.first) {
      ++times.failed;
      times.error = piece->error;
    } else {
      times.add(seconds(*r.first - r.sent), seconds(now - *r.first), r.tokens);
    }
    return true;
  }

  cluster::client& client_;
  const std::string& gateway_;
  const serve_options& options_;
  interruption& stop_;
};

void report_row(bench_report& report, const std::string& where, std::size_t concurrency,
                const answer_times& t, const answer_times* floor) {
  const double ttft = median(t.ttft_ms);
  const double tpot = median(t.tpot_ms);
  report.add({where, static_cast<double>(concurrency), static_cast<double>(t.ttft_ms.size()),
              static_cast<double>(t.failed), ttft, quantile(t.ttft_ms, 0.99), tpot,
              quantile(t.tpot_ms, 0.99), static_cast<double>(t.tokens) / t.time_s,
              floor ? ttft / median(floor->ttft_ms) : std::nan(""),
              floor ? tpot / median(floor->tpot_ms) : std::nan("")});
}

bench_report make_report(const serve_options& o) {
  return {"serve",
          o,
          {{"where", "where"},
           {"concurrency", "at a time", 0},
           {"answers", "answers", 0},
           {"failed", "failed", 0},
           {"ttft_p50_ms", "TTFT p50 ms", 2},
           {"ttft_p99_ms", "p99 ms", 2},
           {"tpot_p50_ms", "TPOT p50 ms", 3},
           {"tpot_p99_ms", "p99 ms", 3},
           {"tokens_per_s", "tokens/s", 0},
           {"ttft_ratio", "TTFT of alone", 2},
           {"tpot_ratio", "TPOT of alone", 2}}};
}

int run(serve_options o) {
  if (o.quick) {
    o.requests = 6;
    o.concurrency = {2};
    o.tokens_max = 8;
  }
  const auto prompts = prompts_of(o);
  interruption stop;
  std::optional<bench_cluster> own;
  if (o.demo || !o.up.empty()) {
    show_progress("starting a cluster ...");
    own.emplace(o.up, stop);
  }
  const auto m = own ? own->manifest() : cluster::load_manifest(o.file);
  const std::string gateway = m.with_role(cluster::node_role::gateway).front()->name;
  cluster::client client(m);
  client.attach(m.require(gateway));
  auto report = make_report(o);
  std::optional<answer_times> floor;
  if (o.floor) {
    floor = alone(o, m, prompts, stop);
    report_row(report, "one process", 1, *floor, &*floor);
  }
  load through(client, gateway, o, stop);
  for (const std::size_t concurrency : o.concurrency) {
    show_progress(fmt::format("{} requests, {} at a time ...", prompts.size(), concurrency));
    const auto times = through.run(prompts, concurrency);
    report_row(report, "cluster", concurrency, times, floor ? &*floor : nullptr);
    if (times.failed > 0) {
      report.note(fmt::format("{} of {} requests failed, the last: {}", times.failed,
                              prompts.size(), times.error));
    }
  }
  report.note(fmt::format(
      "Up to {} tokens for each prompt, greedy. Times as the client sees them; later rounds find "
      "their prompts in the prefix cache if it still holds them.",
      o.tokens_max));
  report.print();
  return 0;
}

}  // namespace

void add_bench_serve(CLI::App& bench, command& chosen) {
  auto o = std::make_shared<serve_options>();
  CLI::App* app = bench.add_subcommand(
      "serve", "Requests through a whole cluster (TTFT, TPOT, tokens/s), against one process");
  add_bench_options(*app, *o);
  auto* running = add_manifest_option(*app, o->file);
  auto* up = app->add_option("--up", o->up, "Start the cluster of this manifest, and stop it after")
                 ->excludes(running);
  app->add_flag("--demo", o->demo, "Start a cluster of the demo's shape, and stop it after")
      ->excludes(running)
      ->excludes(up);
  app->add_option("--prompts", o->prompts, "Prompts as for 'eldr generate'; drawn if not given");
  app->add_option("--requests", o->requests, "Requests at each concurrency")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app->add_option("--concurrency", o->concurrency, "Requests under way; several with commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_option("--max-tokens", o->tokens_max, "Tokens to generate for each prompt at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--prompt-words", o->prompt_words, "Length of prompts that are drawn")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_flag("!--no-floor", o->floor, "Leave out the run in one process");
  app->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace eldr::apps
