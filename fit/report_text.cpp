#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "fit/report.hpp"

namespace eldr::fit {
namespace {

using out = std::back_insert_iterator<std::string>;

std::string rho_text(double rho) {
  return std::isnan(rho) ? std::string("-") : fmt::format("{:.4f}", rho);
}

void add_summary(const artifact& routing, out text) {
  fmt::format_to(text, "Routing artifact{}{}\n", routing.model.empty() ? "" : " for ",
                 routing.model);
  fmt::format_to(text, "  {} layers x {} experts, top-{}, KV blocks of {} tokens\n", routing.layers,
                 routing.experts, routing.experts_per_token, routing.block_tokens);
  fmt::format_to(text, "  {} slots from {} calibration requests of {} in the trace\n",
                 routing.slots, routing.calibration_requests, routing.trace_requests);
  fmt::format_to(text, "  signature: {} over {} of {} layers ({})\n", to_string(routing.kind),
                 routing.mask.size(), routing.layers, describe_layers(routing.mask));
  fmt::format_to(text, "  expert-parallel ranks: {}\n", routing.ep_ranks);
  fmt::format_to(text, "  made by eldr {}, seed {}, trace {:016x}{}{}\n", routing.tool_version,
                 routing.seed, routing.trace_digest,
                 routing.trace_source.empty() ? "" : ", source ", routing.trace_source);
}

void add_score(const representation_score& score, std::string_view note, out text) {
  fmt::format_to(text, "  {:<24}", note);
  for (const double rho : score.rho) {
    fmt::format_to(text, "{:>12}", rho_text(rho));
  }
  fmt::format_to(text, "{:>12}{:>10}\n", score.zero_norm, score.eligible ? "yes" : "no");
}

void add_scores(const artifact& routing, out text) {
  const fit_report& report = routing.report;
  fmt::format_to(text, "\nrho (Spearman, signature against decode distances)\n  {:<24}", "");
  for (std::size_t i = 0; i < splits; ++i) {
    fmt::format_to(text, "{:>12}", split_names[i]);
  }
  fmt::format_to(text, "{:>12}{:>10}\n", "zero norm", "eligible");
  for (const representation_score& score : report.scores) {
    add_score(score, to_string(score.kind), text);
  }
  add_score(report.masked_score, fmt::format("{}, masked", to_string(routing.kind)), text);
  fmt::format_to(text, "  {:<24}", "requests");
  for (const split_size& split : report.split) {
    fmt::format_to(text, "{:>12}", split.requests);
  }
  fmt::format_to(text, "\n  {:<24}", "pairs");
  for (const split_size& split : report.split) {
    fmt::format_to(text, "{:>12}", split.pairs);
  }
  fmt::format_to(text, "\n  The layer mask {}.\n",
                 report.mask_kept ? "is used" : "gains too little and is not used");
}

void add_mask_curve(const fit_report& report, out text) {
  fmt::format_to(text, "\nMask curve: layers in the order in which they were added\n");
  fmt::format_to(text, "  {:>6}{:>8}{:>12}{:>12}\n", "layers", "added", "train", "validation");
  for (std::size_t i = 0; i < report.mask_curve.size(); ++i) {
    const mask_point& point = report.mask_curve[i];
    fmt::format_to(text, "  {:>6}{:>8}{:>12}{:>12}\n", i + 1, point.layer,
                   rho_text(point.train_rho), rho_text(point.validation_rho));
  }
}

void add_clusters(const fit_report& report, out text) {
  fmt::format_to(text,
                 "\nSlots: expected distinct experts per layer in a decode batch of {}, of the "
                 "slot and random\n",
                 report.union_batch);
  fmt::format_to(text, "  {:>4}{:>10}{:>10}{:>10}{:>9}  {}\n", "slot", "requests", "slot", "random",
                 "change", "labels");
  for (std::size_t slot = 0; slot < report.clusters.size(); ++slot) {
    const cluster_summary& cluster = report.clusters[slot];
    fmt::format_to(text, "  {:>4}{:>10}{:>10.2f}{:>10.2f}{:>8.1f}%  {}\n", slot, cluster.requests,
                   cluster.slot_union, cluster.random_union,
                   100 * (cluster.slot_union / cluster.random_union - 1),
                   describe_labels(cluster.labels, 4));
  }
  fmt::format_to(text, "  held-out requests {:>8.2f}{:>8.2f}{:>8.1f}%\n",
                 report.held_out_slot_union, report.held_out_random_union,
                 100 * (report.held_out_slot_union / report.held_out_random_union - 1));
  const auto [least, most] = std::ranges::minmax(report.vanilla_sizes);
  fmt::format_to(text,
                 "  mean cosine with the centroid {:.4f}; plain K-means {:.4f} with {} to {} "
                 "requests a cluster\n",
                 report.objective, report.vanilla_objective, least, most);
}

}  // namespace

std::string describe_labels(const std::vector<label_count>& labels, std::size_t shown_max) {
  std::string text;
  std::uint32_t others = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (i >= shown_max) {
      others += labels[i].requests;
      continue;
    }
    fmt::format_to(std::back_inserter(text), "{}{} {}", text.empty() ? "" : ", ",
                   labels[i].label.empty() ? "unlabelled" : labels[i].label, labels[i].requests);
  }
  if (others > 0) {
    fmt::format_to(std::back_inserter(text), ", others {}", others);
  }
  return text;
}

std::string describe_layers(const std::vector<std::uint32_t>& layers) {
  std::string text;
  for (std::size_t first = 0; first < layers.size();) {
    std::size_t last = first;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) {
      ++last;
    }
    fmt::format_to(std::back_inserter(text), "{}{}", text.empty() ? "" : ", ", layers[first]);
    if (last > first) {
      fmt::format_to(std::back_inserter(text), "-{}", layers[last]);
    }
    first = last + 1;
  }
  return text;
}

std::string report_text(const artifact& routing) {
  std::string text;
  add_summary(routing, std::back_inserter(text));
  for (const std::string& warning : routing.report.warnings) {
    fmt::format_to(std::back_inserter(text), "  note: {}\n", warning);
  }
  add_scores(routing, std::back_inserter(text));
  add_mask_curve(routing.report, std::back_inserter(text));
  add_clusters(routing.report, std::back_inserter(text));
  return text;
}

}  // namespace eldr::fit
