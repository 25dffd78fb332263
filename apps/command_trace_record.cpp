/// `eldr trace record`: runs prompts and writes which experts every token chose.

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <map>
#include <memory>

#include "apps/commands.hpp"
#include "apps/prompt_file.hpp"
#include "cluster/client.hpp"
#include "fit/trace.hpp"
#include "gpu/host_runner.hpp"
#include "gpu/local_generate.hpp"
#include "gpu/model_config.hpp"
#include "gpu/tokenizer.hpp"

namespace eldr::apps {
namespace {

struct record_options {
  std::filesystem::path manifest;
  std::vector<std::filesystem::path> prompts;
  std::filesystem::path out;
  std::string split;
  bool local = false;
  std::string model;
  std::uint32_t tokens_max = 96;
  std::uint64_t seed = 1;
  float temperature = 0.8F;
  float top_p = 0.95F;
  std::uint32_t concurrency = 16;
  std::uint32_t block_tokens = 16;
};

volatile std::sig_atomic_t interrupted = 0;

std::vector<prompt_line> prompts_of(const record_options& o) {
  std::vector<prompt_line> all;
  for (const auto& file : o.prompts) {
    for (auto& p : read_prompts(file)) {
      if (o.split.empty() || p.split == o.split) {
        all.push_back(std::move(p));
      }
    }
  }
  if (all.empty()) {
    throw std::runtime_error(fmt::format("the files have no prompts of split '{}'", o.split));
  }
  return all;
}

actors::generation generation_of(const record_options& o, std::size_t index) {
  actors::generation gen;
  gen.tokens_max = o.tokens_max;
  gen.sampling = {o.seed + index, o.temperature, 0, o.top_p};
  return gen;
}

/// The trace on its way to the disk, with lines of progress.
class recording {
 public:
  recording(const record_options& o, const gpu::model_geometry& g, std::size_t total)
      : folder_(o.out),
        writer_(o.out, writer_options(o, g)),
        row_cells_(std::size_t{g.layers} * g.experts_per_token),
        total_(total) {}

  void add(std::size_t index, const std::string& label, std::size_t prompt_tokens,
           std::span<const std::uint16_t> choices) {
    fit::recorded_request request;
    request.id = "q" + std::to_string(index);
    request.label = label;
    request.prefill_rows = prompt_tokens;
    request.choices = choices;
    writer_.add(request);
    rows_ += choices.size() / row_cells_;
    if (writer_.requests() % 20 == 0 || writer_.requests() == total_) {
      std::cerr << fmt::format("recorded {} of {} requests, {} tokens\n", writer_.requests(),
                               total_, rows_);
    }
  }
  void skip() { ++skipped_; }
  void finish() {
    writer_.finish();
    std::cout << fmt::format(
        "wrote {}: {} requests, {} tokens{}{}\n", folder_.string(), writer_.requests(), rows_,
        skipped_ > 0 ? fmt::format("; {} left out (failed or retried)", skipped_) : "",
        interrupted != 0 ? "; interrupted" : "");
  }

 private:
  static fit::trace_writer_options writer_options(const record_options& o,
                                                  const gpu::model_geometry& g) {
    fit::trace_writer_options w;
    w.layers = g.layers;
    w.experts_per_token = g.experts_per_token;
    w.properties.experts = g.experts;
    w.properties.block_tokens = o.block_tokens;
    w.properties.model = o.model.empty() ? std::string(gpu::embedded_model_name) : o.model;
    w.properties.source = "eldr trace record";
    return w;
  }

  std::filesystem::path folder_;
  fit::trace_writer writer_;
  std::size_t row_cells_;
  std::size_t total_;
  std::size_t rows_ = 0;
  std::size_t skipped_ = 0;
};

void record_locally(const record_options& o, const std::vector<prompt_line>& prompts) {
  const auto files = gpu::open_model(o.model);
  const gpu::tokenizer tokens(files->tokenizer_json());
  const auto runner = gpu::make_host_runner(files);
  recording out(o, runner->geometry(), prompts.size());
  for (std::size_t i = 0; i < prompts.size() && interrupted == 0; ++i) {
    const auto ids = tokens.encode(prompts[i].text);
    gpu::local_options options;
    options.tokens_max = o.tokens_max;
    options.record_choices = true;
    const auto result = gpu::local_generate(*runner, ids, generation_of(o, i).sampling, options);
    out.add(i, prompts[i].label, ids.size(), result.choices);
  }
  out.finish();
}

/// A request that is being recorded.
struct pending {
  std::size_t index = 0;
  std::vector<std::uint16_t> choices;
};

/// Takes a piece in; true if it was the request's last.
bool take(pending& p, const cluster::completion_piece& piece,
          const std::vector<prompt_line>& prompts, recording& out) {
  p.choices.insert(p.choices.end(), piece.choices.begin(), piece.choices.end());
  if (piece.finish == wire::FinishReason::NONE) {
    return false;
  }
  // First attempts only: a resumed one counts generated tokens as its prompt.
  if (piece.finish != wire::FinishReason::ERROR && piece.attempts == 1) {
    out.add(p.index, prompts[p.index].label, piece.prompt_tokens, p.choices);
  } else {
    out.skip();
  }
  return true;
}

void record_on_cluster(record_options o, const std::vector<prompt_line>& prompts) {
  const auto m = cluster::load_manifest(o.manifest);
  const auto path = m.model_path();
  o.model = path ? path->string() : std::string();
  o.block_tokens = m.kv.block_tokens;
  const auto geometry = gpu::parse_config(gpu::open_model(o.model)->config_json()).geometry;
  const auto gateway = m.with_role(cluster::node_role::gateway).front()->name;
  cluster::client client(m);
  client.attach(m.require(gateway));
  recording out(o, geometry, prompts.size());
  std::map<std::uint64_t, pending> running;
  std::size_t next = 0;
  while ((next < prompts.size() && interrupted == 0) || !running.empty()) {
    while (next < prompts.size() && running.size() < o.concurrency && interrupted == 0) {
      cluster::completion_request request;
      request.text = prompts[next].text;
      request.label = prompts[next].label;
      request.gen = generation_of(o, next);
      request.has_seed = true;
      request.record = true;
      running[client.submit(gateway, request)].index = next;
      ++next;
    }
    const auto event = client.next(std::chrono::milliseconds(500));
    if (!event) {
      continue;
    }
    if (const auto* lost = std::get_if<cluster::node_lost>(&*event)) {
      throw std::runtime_error("the session with gateway '" + lost->node + "' ended: " + lost->why);
    }
    const auto* piece = std::get_if<cluster::completion_piece>(&*event);
    const auto found = piece != nullptr ? running.find(piece->request) : running.end();
    if (found != running.end() && take(found->second, *piece, prompts, out)) {
      running.erase(found);
    }
  }
  out.finish();
}

int record(const record_options& o) {
  const auto prompts = prompts_of(o);
  std::signal(SIGINT, [](int) { interrupted = 1; });
  if (o.local) {
    record_locally(o, prompts);
  } else {
    record_on_cluster(o, prompts);
  }
  return interrupted != 0 ? 130 : 0;
}

}  // namespace

void add_trace_record(CLI::App& trace, command& chosen) {
  auto o = std::make_shared<record_options>();
  CLI::App* r =
      trace.add_subcommand("record", "Run prompts and record the experts that every token chose");
  add_manifest_option(*r, o->manifest);
  r->add_option("-o,--out", o->out, "Trace folder to write")->required();
  r->add_option("--prompts", o->prompts, "Files of JSON lines with \"prompt\" and \"label\"")
      ->required();
  r->add_option("--split", o->split, "Only prompts of this \"split\", e.g. calibration");
  auto* local = r->add_flag("--local", o->local, "In this process, without a cluster");
  r->add_option("--model", o->model, "Model folder for --local; the embedded tiny-moe if not given")
      ->needs(local);
  r->add_option("--max-tokens", o->tokens_max, "Tokens to generate at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  r->add_option("--seed", o->seed, "Of the sampling; request i uses seed + i")
      ->capture_default_str();
  r->add_option("--temperature", o->temperature, "0: greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  r->add_option("--top-p", o->top_p, "Sample from the likeliest tokens of this total probability")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  r->add_option("--concurrency", o->concurrency, "Prompts under way at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  r->callback([o, &chosen] { chosen = [o] { return record(*o); }; });
}

}  // namespace eldr::apps
