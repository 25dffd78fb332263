/// `eldr fit`: from a trace to the routing artifact, with a report.

#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <memory>

#include "apps/commands.hpp"
#include "apps/report_file.hpp"
#include "fit/fit.hpp"
#include "fit/report.hpp"

namespace eldr::apps {
namespace {

struct fit_command {
  std::filesystem::path trace;
  std::filesystem::path output;
  std::filesystem::path report;  ///< Empty: none.
  bool quiet = false;
  fit::fit_options options;
};

int run_fit(const fit_command& command) {
  const auto start = std::chrono::steady_clock::now();
  const fit::artifact routing = fit::fit_routing(fit::trace::open(command.trace), command.options);
  fit::save_artifact(routing, command.output);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  write_report_page(routing, command.report);
  if (!command.quiet) {
    std::cout << fit::report_text(routing) << '\n';
  }
  std::cout << fmt::format("wrote {} in {:.2f} s\n", command.output.string(), elapsed.count());
  return 0;
}

}  // namespace

void add_fit(CLI::App& app, command& chosen) {
  auto command = std::make_shared<fit_command>();
  fit::fit_options& options = command->options;
  CLI::App* subcommand = app.add_subcommand("fit", "Make a routing artifact from a trace");
  subcommand->add_option("trace", command->trace, "Trace folder")->required();
  subcommand->add_option("-k,--slots", options.slots, "Clusters: one per decode worker")
      ->required();
  subcommand->add_option("-o,--output", command->output, "Routing artifact to write")->required();
  subcommand->add_option("--report", command->report, "Write the report as an HTML page");
  subcommand->add_flag("--quiet", command->quiet, "Do not print the report");
  subcommand->add_option("--seed", options.seed, "Same trace and seed, same bytes")
      ->capture_default_str();
  subcommand->add_option("--experts", options.experts,
                         "Experts per layer (default: what the trace says)");
  subcommand->add_option("--block-tokens", options.block_tokens,
                         "KV block size (default: what the trace says, else 16)");
  subcommand->add_option("--model", options.model, "Name of the model, for people");
  subcommand->add_option("--ep-ranks", options.ep_ranks, "Expert-parallel ranks of a decode worker")
      ->capture_default_str();
  subcommand->add_option("--batch", options.batch, "Decode batch for placement and expected unions")
      ->capture_default_str();
  subcommand->add_option("--pairs", options.pairs_max, "Pairs per split at most")
      ->capture_default_str();
  subcommand->add_option("--validation-share", options.validation_share, "Share of the requests")
      ->capture_default_str();
  subcommand
      ->add_option("--test-share", options.test_share, "Share of the requests, for the report only")
      ->capture_default_str();
  subcommand
      ->add_option("--mask-gain", options.mask_gain_min,
                   "Validation rho that a layer mask must gain to be used")
      ->capture_default_str();
  subcommand->add_option("--kmeans-seeds", options.kmeans_seeds, "Starts of K-means; the best wins")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  subcommand
      ->add_option("--requests", options.requests_max, "Requests to use at most, a seeded sample")
      ->check(CLI::Range(10, 32'768))
      ->capture_default_str();
  subcommand->add_option("--threads", options.threads, "0: as many as the machine has")
      ->capture_default_str();
  subcommand->callback([=, &chosen] { chosen = [=] { return run_fit(*command); }; });
}

}  // namespace eldr::apps
