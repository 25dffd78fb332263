/// `eldr artifact show`: what a routing artifact holds.

#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.hpp"
#include "apps/report_file.hpp"
#include "fit/report.hpp"

namespace eldr::apps {
namespace {

using json = nlohmann::ordered_json;

json labels_json(const std::vector<fit::label_count>& labels) {
  json out = json::array();
  for (const auto& [label, requests] : labels) {
    out.push_back({{"label", label}, {"requests", requests}});
  }
  return out;
}

json number_or_null(double value) {
  return std::isnan(value) ? json(nullptr) : json(value);
}

json score_json(const fit::representation_score& score) {
  json out{{"representation", fit::to_string(score.kind)}};
  for (std::size_t split = 0; split < fit::splits; ++split) {
    out["rho"][std::string(fit::split_names[split])] = number_or_null(score.rho[split]);
  }
  out["zero_norm"] = score.zero_norm;
  out["eligible"] = score.eligible;
  return out;
}

json report_json(const fit::fit_report& report) {
  json out;
  for (const auto& score : report.scores) {
    out["scores"].push_back(score_json(score));
  }
  out["masked_score"] = score_json(report.masked_score);
  out["mask_kept"] = report.mask_kept;
  for (const auto& point : report.mask_curve) {
    out["mask_curve"].push_back({{"layer", point.layer},
                                 {"train", number_or_null(point.train_rho)},
                                 {"validation", number_or_null(point.validation_rho)}});
  }
  for (const auto& cluster : report.clusters) {
    out["clusters"].push_back({{"requests", cluster.requests},
                               {"labels", labels_json(cluster.labels)},
                               {"slot_union", cluster.slot_union},
                               {"random_union", cluster.random_union}});
  }
  out["union_batch"] = report.union_batch;
  out["held_out_slot_union"] = number_or_null(report.held_out_slot_union);
  out["held_out_random_union"] = number_or_null(report.held_out_random_union);
  out["objective"] = report.objective;
  out["vanilla_objective"] = report.vanilla_objective;
  out["vanilla_sizes"] = report.vanilla_sizes;
  out["warnings"] = report.warnings;
  return out;
}

json artifact_json(const fit::artifact& routing) {
  return {{"model", routing.model},
          {"layers", routing.layers},
          {"experts", routing.experts},
          {"experts_per_token", routing.experts_per_token},
          {"block_tokens", routing.block_tokens},
          {"slots", routing.slots},
          {"representation", fit::to_string(routing.kind)},
          {"mask", routing.mask},
          {"ep_ranks", routing.ep_ranks},
          {"labels", labels_json(routing.labels)},
          {"trace_requests", routing.trace_requests},
          {"calibration_requests", routing.calibration_requests},
          {"trace_digest", fmt::format("{:016x}", routing.trace_digest)},
          {"trace_source", routing.trace_source},
          {"seed", routing.seed},
          {"tool_version", routing.tool_version},
          {"report", report_json(routing.report)}};
}

struct show_command {
  std::filesystem::path file;
  std::filesystem::path report;  ///< Empty: none.
  bool json = false;
};

int run_show(const show_command& command) {
  const fit::artifact routing = fit::load_artifact(command.file);
  write_report_page(routing, command.report);
  if (command.json) {
    // Labels come from traces and may be any bytes.
    std::cout << artifact_json(routing).dump(2, ' ', false, json::error_handler_t::replace) << '\n';
  } else {
    std::cout << fit::report_text(routing);
  }
  return 0;
}

}  // namespace

void add_artifact(CLI::App& app, command& chosen) {
  CLI::App* artifact = app.add_subcommand("artifact", "Look at a routing artifact");
  artifact->require_subcommand(1);
  auto command = std::make_shared<show_command>();
  CLI::App* show = artifact->add_subcommand("show", "Show what it holds and how it was fitted");
  show->add_option("file", command->file, "Routing artifact")->required();
  show->add_option("--report", command->report, "Write the fit report as an HTML page");
  show->add_flag("--json", command->json, "For programs");
  show->callback([=, &chosen] { chosen = [=] { return run_show(*command); }; });
}

}  // namespace eldr::apps
