/// `eldr generate`: prompts in, streamed text out; through a cluster, or in this process alone.

#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <random>

#include "apps/commands.hpp"
#include "apps/completion_output.hpp"
#include "cluster/client.hpp"
#include "gpu/host_runner.hpp"
#include "gpu/local_generate.hpp"
#include "gpu/text_stream.hpp"

namespace eldr::apps {
namespace {

struct generate_options {
  std::filesystem::path file;
  std::string gateway;
  std::string prompt;
  std::filesystem::path prompts;
  bool local = false;
  std::string model;
  std::uint32_t tokens_max = 64;
  std::optional<std::uint64_t> seed;
  float temperature = 0;
  std::uint32_t top_k = 0;
  float top_p = 1;
  std::uint32_t concurrency = 1;
  std::uint32_t threads = 1;
  bool json = false;
};

std::uint64_t draw_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

std::vector<prompt_line> prompts_of(const generate_options& o) {
  if (!o.prompts.empty()) {
    return read_prompts(o.prompts);
  }
  if (o.prompt.empty()) {
    throw std::runtime_error("the prompt is empty; give --prompt TEXT or --prompts FILE.jsonl");
  }
  prompt_line p;
  p.text = o.prompt;
  return {p};
}

/// Sampling of one prompt: its own settings before those of the command line.
actors::generation generation_of(const generate_options& o, const prompt_line& p) {
  actors::generation gen;
  gen.tokens_max = p.tokens_max.value_or(o.tokens_max);
  gen.sampling.temperature = p.temperature.value_or(o.temperature);
  gen.sampling.top_k = o.top_k;
  gen.sampling.top_p = o.top_p;
  gen.sampling.seed = p.seed ? *p.seed : o.seed.value_or(0);
  return gen;
}

/// Prints answers as they come. People see one answer stream at a time; with several under way,
/// each is shown when it is complete.
class printer {
 public:
  printer(const generate_options& o, const std::vector<prompt_line>& prompts)
      : options_(o), prompts_(prompts), streams_(!o.json && o.concurrency == 1) {}

  void begin(std::size_t index) {
    if (streams_) {
      std::cout << heading(index, prompts_[index]) << std::flush;
    }
  }
  void text(const std::string& piece) {
    if (streams_) {
      std::cout << piece << std::flush;
    }
  }
  void end(completion c) {
    if (options_.json) {
      std::cout << to_json_line(c, prompts_[c.index]) << std::endl;
    } else {
      std::cout << (streams_ ? "" : heading(c.index, prompts_[c.index]) + c.text) << '\n'
                << summary(c) << std::endl;
    }
    done_.push_back(std::move(c));
  }
  /// Returns the exit code.
  int finish() {
    if (!options_.json && done_.size() > 1) {
      std::cout << totals(done_);
    }
    const bool failed =
        std::any_of(done_.begin(), done_.end(), [](const auto& c) { return c.finish == "error"; });
    return failed ? 1 : 0;
  }

 private:
  const generate_options& options_;
  const std::vector<prompt_line>& prompts_;
  bool streams_;
  std::vector<completion> done_;
};

int generate_locally(const generate_options& o) {
  const auto prompts = prompts_of(o);
  const auto files = gpu::open_model(o.model);
  const gpu::tokenizer tokens(files->tokenizer_json());
  gpu::host_options host;
  host.threads = o.threads;
  const auto runner = gpu::make_host_runner(files, host);
  printer out(o, prompts);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    out.begin(i);
    auto gen = generation_of(o, prompts[i]);
    if (!o.seed && !prompts[i].seed) {
      gen.sampling.seed = draw_seed();
    }
    completion c;
    c.index = i;
    c.seed = gen.sampling.seed;
    const auto ids = tokens.encode(prompts[i].text);
    gpu::text_stream stream(tokens);
    gpu::local_options options;
    options.tokens_max = gen.tokens_max;
    options.on_token = [&](gpu::token_id id) {
      const auto piece = runner->is_end_token(id) ? std::string() : stream.feed(id);
      c.text += piece;
      out.text(piece);
      return true;
    };
    const auto result = gpu::local_generate(*runner, ids, gen.sampling, options);
    const auto rest = stream.flush();
    c.text += rest;
    out.text(rest);
    c.tokens = result.tokens;
    c.finish = result.finish == gpu::local_finish::end_token ? "eos" : "length";
    c.prompt_tokens = static_cast<std::uint32_t>(ids.size());
    c.ttft_ms = result.prefill_s * 1e3;
    c.total_ms = (result.prefill_s + result.decode_s) * 1e3;
    out.end(std::move(c));
  }
  return out.finish();
}

const char* name_of(wire::FinishReason reason) {
  switch (reason) {
    case wire::FinishReason::EOS:
      return "eos";
    case wire::FinishReason::LENGTH:
      return "length";
    case wire::FinishReason::CANCELLED:
      return "cancelled";
    default:
      return "error";
  }
}

void complete(completion& c, const cluster::completion_piece& last) {
  c.finish = name_of(last.finish);
  c.error = last.error;
  c.retry_after_ms = last.retry_after_ms;
  c.prefill_node = last.prefill_node;
  c.decode_node = last.decode_node;
  c.attempts = last.attempts;
  c.prompt_tokens = last.prompt_tokens;
  c.cached_tokens = last.cached_tokens;
  c.seed = last.seed;
  c.ttft_ms = static_cast<double>(last.ttft_us) / 1e3;
  c.total_ms = static_cast<double>(last.total_us) / 1e3;
}

int generate_on_cluster(const generate_options& o) {
  const auto prompts = prompts_of(o);
  const auto m = cluster::load_manifest(o.file);
  const auto& gateway =
      o.gateway.empty() ? *m.with_role(cluster::node_role::gateway).front() : m.require(o.gateway);
  if (gateway.role != cluster::node_role::gateway) {
    throw std::runtime_error("node '" + gateway.name + "' is not a gateway");
  }
  cluster::client client(m);
  client.attach(gateway);
  printer out(o, prompts);
  std::map<std::uint64_t, completion> running;  // By request number.
  std::size_t next_prompt = 0;
  while (next_prompt < prompts.size() || !running.empty()) {
    while (next_prompt < prompts.size() && running.size() < o.concurrency) {
      const auto& p = prompts[next_prompt];
      out.begin(next_prompt);
      cluster::completion_request request;
      request.text = p.text;
      request.gen = generation_of(o, p);
      request.has_seed = o.seed || p.seed;
      request.label = p.label;
      auto& c = running[client.submit(gateway.name, request)];
      c.index = next_prompt++;
    }
    const auto event = client.next(std::chrono::seconds(1));
    if (!event) {
      continue;  // The gateway bounds every wait and tells.
    }
    if (const auto* lost = std::get_if<cluster::node_lost>(&*event)) {
      throw std::runtime_error("the session with gateway '" + lost->node + "' ended: " + lost->why);
    }
    const auto* piece = std::get_if<cluster::completion_piece>(&*event);
    const auto found = piece != nullptr ? running.find(piece->request) : running.end();
    if (found == running.end()) {
      continue;
    }
    auto& c = found->second;
    c.tokens.insert(c.tokens.end(), piece->ids.begin(), piece->ids.end());
    c.text += piece->text;
    out.text(piece->text);
    if (piece->finish != wire::FinishReason::NONE) {
      complete(c, *piece);
      out.end(std::move(c));
      running.erase(found);
    }
  }
  return out.finish();
}

}  // namespace

void add_generate(CLI::App& app, command& chosen) {
  auto o = std::make_shared<generate_options>();
  CLI::App* g = app.add_subcommand("generate", "Complete prompts and stream the text");
  add_manifest_option(*g, o->file);
  auto* prompt = g->add_option("--prompt", o->prompt, "Text to continue");
  g->add_option("--prompts", o->prompts,
                "JSON lines with \"prompt\", and \"label\", \"max_tokens\", \"seed\", "
                "\"temperature\" if wanted")
      ->excludes(prompt);
  g->add_option("--max-tokens", o->tokens_max, "Tokens to generate at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  g->add_option("--seed", o->seed, "Seed of the sampling; drawn if not given");
  g->add_option("--temperature", o->temperature, "0: greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  g->add_option("--top-k", o->top_k, "Sample from the k likeliest tokens; 0: all")
      ->capture_default_str();
  g->add_option("--top-p", o->top_p, "Sample from the likeliest tokens of this total probability")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  g->add_option("--concurrency", o->concurrency, "Prompts under way at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  g->add_option("--gateway", o->gateway, "Gateway to ask; the manifest's first if not given");
  g->add_flag("--json", o->json, "One JSON object per answer");
  auto* local =
      g->add_flag("--local", o->local, "In this process, without a cluster: the reference");
  g->add_option("--model", o->model, "Model folder for --local; the embedded tiny-moe if not given")
      ->needs(local);
  g->add_option("--threads", o->threads, "Threads for --local")
      ->needs(local)
      ->check(CLI::Range(1, 256));
  g->callback([o, &chosen] {
    chosen = [o] { return o->local ? generate_locally(*o) : generate_on_cluster(*o); };
  });
}

}  // namespace eldr::apps
