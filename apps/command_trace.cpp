/// `eldr trace`: look at recorded routing, and take over what other engines record.

#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/commands.hpp"
#include "fit/trace_import.hpp"
#include "fit/trace_info.hpp"

namespace eldr::apps {
namespace {

struct info_command {
  std::filesystem::path trace;
  std::uint32_t experts = 0;
  std::uint32_t batch = 8;
  std::uint64_t seed = 1;
  bool json = false;
};

nlohmann::ordered_json summary_json(const fit::trace_summary& summary) {
  nlohmann::ordered_json out{{"layers", summary.layers},
                             {"experts", summary.experts},
                             {"experts_per_token", summary.experts_per_token},
                             {"requests", summary.requests},
                             {"prefill_tokens", summary.prefill_tokens},
                             {"decode_tokens", summary.decode_tokens},
                             {"entropy_bits", summary.entropy}};
  for (const auto& [label, requests] : summary.labels) {
    out["labels"].push_back({{"label", label}, {"requests", requests}});
  }
  if (summary.correlation) {
    out["prefill_decode_correlation"] = *summary.correlation;
  }
  if (summary.unions) {
    out["distinct_experts"] = {{"batch", summary.unions->batch},
                               {"same_label", summary.unions->same_label},
                               {"mixed", summary.unions->mixed}};
  }
  return out;
}

int run_info(const info_command& command) {
  const auto source = fit::trace::open(command.trace);
  std::uint32_t experts = command.experts != 0 ? command.experts : source.properties().experts;
  if (experts == 0) {
    experts = source.experts_seen();
  }
  const auto summary = fit::summarise_trace(source, experts, command.batch, command.seed);
  if (command.json) {
    std::cout << summary_json(summary).dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
              << '\n';
  } else {
    std::cout << fit::summary_text(summary);
  }
  return 0;
}

struct import_command {
  std::filesystem::path responses;
  std::filesystem::path trace;
  fit::import_options options;
};

int run_import(const import_command& command) {
  const auto summary = fit::import_trace(command.responses, command.trace, command.options);
  std::cout << fmt::format("wrote {}: {} requests, {} rows, {} experts per layer{}\n",
                           command.trace.string(), summary.requests, summary.rows, summary.experts,
                           command.options.experts == 0
                               ? " (the highest id plus one; --experts says it for certain)"
                               : "");
  return 0;
}

void add_info(CLI::App& trace, command& chosen) {
  auto command = std::make_shared<info_command>();
  CLI::App* subcommand =
      trace.add_subcommand("info", "Summarise a trace, after checking all of it");
  subcommand->add_option("trace", command->trace, "Trace folder")->required();
  subcommand->add_option(
      "--experts", command->experts,
      "Experts per layer (default: what the trace says, else the highest id plus one)");
  subcommand->add_option("--batch", command->batch, "Requests in a sampled decode batch")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  subcommand->add_option("--seed", command->seed, "Of the sampled batches")->capture_default_str();
  subcommand->add_flag("--json", command->json, "For programs");
  subcommand->callback([=, &chosen] { chosen = [=] { return run_info(*command); }; });
}

void add_import(CLI::App& trace, command& chosen) {
  auto command = std::make_shared<import_command>();
  fit::import_options& options = command->options;
  CLI::App* subcommand =
      trace.add_subcommand("import", "Make a trace of responses that vLLM or SGLang returned");
  subcommand->add_option("responses", command->responses, "One JSON response per line")->required();
  subcommand->add_option("trace", command->trace, "Trace folder to write")->required();
  const std::map<std::string, fit::response_format> formats{
      {"vllm", fit::response_format::vllm}, {"sglang", fit::response_format::sglang}};
  subcommand->add_option("--from", options.format, "Engine: vllm or sglang")
      ->required()
      ->transform(CLI::CheckedTransformer(formats, CLI::ignore_case));
  subcommand->add_option("--layers", options.layers, "MoE layers (SGLang: needed)");
  subcommand->add_option("--experts-per-token", options.experts_per_token, "k (SGLang: needed)");
  subcommand
      ->add_option("--experts", options.experts,
                   "Experts per layer (default: the highest id plus one)")
      ->check(CLI::Range(1, 65'536));
  subcommand->add_option("--block-tokens", options.block_tokens, "KV block size of the engine");
  subcommand->add_option("--model", options.model, "Name of the model, for people");
  subcommand->callback([=, &chosen] { chosen = [=] { return run_import(*command); }; });
}

}  // namespace

void add_trace(CLI::App& app, command& chosen) {
  CLI::App* trace = app.add_subcommand("trace", "Record which experts tokens choose, look at it, or import it");
  trace->require_subcommand(1);
  add_trace_record(*trace, chosen);
  add_info(*trace, chosen);
  add_import(*trace, chosen);
}

}  // namespace eldr::apps
