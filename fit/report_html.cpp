#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "fit/report.hpp"
#include "fit/svg.hpp"

namespace eldr::fit {
namespace {

constexpr std::string_view page_start = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ELDR fit report</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --text: #1b1f24; --faint: #69707a; --rule: #d8dce2;
  --page: #ffffff; --first: #2563a8; --second: #c2622d; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --faint: #9aa2ad;
  --rule: #3a4048; --page: #16191d; --first: #6aa9ee; --second: #eb9a68; } }
@media print { :root { color-scheme: light; --text: #000; --faint: #444; --rule: #bbb;
  --page: #fff; --first: #2563a8; --second: #c2622d; }
  section { break-inside: avoid; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 860px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p, li { max-width: 46rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .8rem; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child, td.words, th.words { text-align: left; }
tr.chosen td { font-weight: 600; }
svg { width: 100%; height: auto; }
svg .grid { stroke: var(--rule); } svg .axis { fill: var(--faint); font-size: 12px; }
svg polyline { fill: none; stroke-width: 2; }
svg .line-0 { stroke: var(--first); } svg .line-1 { stroke: var(--second); }
svg .bar-0, svg .line-0.key { fill: var(--first); }
svg .bar-1, svg .line-1.key { fill: var(--second); }
</style></head><body>
)";

using out = std::back_insert_iterator<std::string>;

std::string rho_cell(double rho) {
  return std::isnan(rho) ? std::string("<td>-</td>") : fmt::format("<td>{:.4f}</td>", rho);
}

void add_summary(const artifact& routing, out page) {
  fmt::format_to(page, "<h1>Fit report{}{}</h1>\n<section><ul>\n",
                 routing.model.empty() ? "" : ": ", escape_html(routing.model));
  fmt::format_to(page, "<li>{} layers, {} experts, top-{}, KV blocks of {} tokens</li>\n",
                 routing.layers, routing.experts, routing.experts_per_token, routing.block_tokens);
  fmt::format_to(page, "<li>{} slots from {} calibration requests of {} in the trace</li>\n",
                 routing.slots, routing.calibration_requests, routing.trace_requests);
  fmt::format_to(page, "<li>Signature: {} over {} of {} layers ({})</li>\n",
                 escape_html(to_string(routing.kind)), routing.mask.size(), routing.layers,
                 describe_layers(routing.mask));
  fmt::format_to(page, "<li>Made by eldr {} with seed {} from trace {:016x}{}{}</li>\n",
                 escape_html(routing.tool_version), routing.seed, routing.trace_digest,
                 routing.trace_source.empty() ? "" : ", source ",
                 escape_html(routing.trace_source));
  for (const std::string& warning : routing.report.warnings) {
    fmt::format_to(page, "<li>Note: {}</li>\n", escape_html(warning));
  }
  fmt::format_to(page, "</ul></section>\n");
}

void add_score(const representation_score& score, std::string_view name, bool chosen, out page) {
  fmt::format_to(page, "<tr{}><td>{}</td>", chosen ? " class='chosen'" : "", escape_html(name));
  for (const double rho : score.rho) {
    fmt::format_to(page, "{}", rho_cell(rho));
  }
  fmt::format_to(page, "<td>{}</td><td>{}</td></tr>\n", score.zero_norm,
                 score.eligible ? "yes" : "no");
}

void add_scores(const artifact& routing, out page) {
  const fit_report& report = routing.report;
  fmt::format_to(page,
                 "<section><h2>How well signatures predict decode</h2>\n"
                 "<p>Spearman correlation between distances of signatures and distances of decode "
                 "patterns, over pairs of requests. The representation is chosen on the validation "
                 "split; the test split is only reported.</p>\n<table><tr><th></th>");
  for (std::size_t i = 0; i < splits; ++i) {
    fmt::format_to(page, "<th>{}</th>", split_names[i]);
  }
  fmt::format_to(page, "<th>zero norm</th><th>eligible</th></tr>\n");
  for (const representation_score& score : report.scores) {
    add_score(score, to_string(score.kind), !report.mask_kept && score.kind == routing.kind, page);
  }
  add_score(report.masked_score, fmt::format("{}, masked", to_string(routing.kind)),
            report.mask_kept, page);
  fmt::format_to(page, "<tr><td>pairs</td>");
  for (const split_size& split : report.split) {
    fmt::format_to(page, "<td>{}</td>", split.pairs);
  }
  fmt::format_to(page, "<td></td><td></td></tr></table></section>\n");
}

void add_mask_curve(const fit_report& report, out page) {
  plot_series train{"train", {}};
  plot_series validation{"validation", {}};
  for (const mask_point& point : report.mask_curve) {
    train.values.push_back(point.train_rho);
    validation.values.push_back(point.validation_rho);
  }
  fmt::format_to(page,
                 "<section><h2>Layer mask</h2>\n<p>Layers are added one by one, each the one that "
                 "helps most on the train split. The mask {}.</p>\n{}</section>\n",
                 report.mask_kept ? "is used" : "gains too little on validation and is not used",
                 line_plot({train, validation}, "layers", "rho"));
}

void add_clusters(const fit_report& report, out page) {
  plot_series own{"batch of the slot", {}};
  plot_series random{"random batch", {}};
  plot_series balanced{"balanced", {}};
  plot_series vanilla{"plain K-means", {}};
  std::vector<std::string> names;
  std::string rows;
  for (std::size_t slot = 0; slot < report.clusters.size(); ++slot) {
    const cluster_summary& cluster = report.clusters[slot];
    names.push_back(std::to_string(slot));
    own.values.push_back(cluster.slot_union);
    random.values.push_back(cluster.random_union);
    balanced.values.push_back(cluster.requests);
    fmt::format_to(std::back_inserter(rows),
                   "<tr><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.1f} %</td>"
                   "<td class='words'>{}</td></tr>\n",
                   slot, cluster.requests, cluster.slot_union, cluster.random_union,
                   100 * (cluster.slot_union / cluster.random_union - 1),
                   escape_html(describe_labels(cluster.labels, 6)));
  }
  vanilla.values.assign(report.vanilla_sizes.begin(), report.vanilla_sizes.end());
  fmt::format_to(page,
                 "<section><h2>Slots</h2>\n<p>Expected distinct experts per layer in a decode "
                 "batch of {}. A held-out request meets {:.2f} in its slot and {:.2f} in a random "
                 "batch ({:.1f} %).</p>\n{}</section>\n",
                 report.union_batch, report.held_out_slot_union, report.held_out_random_union,
                 100 * (report.held_out_slot_union / report.held_out_random_union - 1),
                 bar_plot({own, random}, names, "distinct experts"));
  fmt::format_to(page,
                 "<section><table><tr><th>slot</th><th>requests</th><th>slot batch</th>"
                 "<th>random batch</th><th>change</th><th class='words'>labels</th></tr>\n{}"
                 "</table></section>\n",
                 rows);
  fmt::format_to(page,
                 "<section><h2>Cluster sizes</h2>\n<p>Mean cosine with the centroid: balanced "
                 "{:.4f}, plain {:.4f}.</p>\n{}</section>\n",
                 report.objective, report.vanilla_objective,
                 bar_plot({balanced, vanilla}, names, "requests"));
}

}  // namespace

std::string report_html(const artifact& routing) {
  std::string page(page_start);
  add_summary(routing, std::back_inserter(page));
  add_scores(routing, std::back_inserter(page));
  add_mask_curve(routing.report, std::back_inserter(page));
  add_clusters(routing.report, std::back_inserter(page));
  page += "</body></html>\n";
  return page;
}

}  // namespace eldr::fit
