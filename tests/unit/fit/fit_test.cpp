#include "fit/fit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>

#include "fit/error.hpp"
#include "fit/report.hpp"
#include "fit/svg.hpp"
#include "fit/transform.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::recorded_trace;
using testing::synthetic_counts;
using testing::temporary_folder;

std::string error_of(const trace_counts& counts, const fit_options& options) {
  try {
    fit_routing(counts, options);
  } catch (const fit_error& error) {
    return error.what();
  }
  return "";
}

TEST(fit_routing, gives_the_same_bytes_for_the_same_trace_and_seed) {
  const temporary_folder folder;
  testing::write_synthetic_trace(folder.path() / "trace", {});
  const auto source = trace::open(folder.path() / "trace");
  fit_options options{.slots = 4, .ep_ranks = 4, .threads = 1};
  const auto first = serialize_artifact(fit_routing(source, options));
  options.threads = 3;
  EXPECT_EQ(serialize_artifact(fit_routing(source, options)), first);
  options.seed = 2;
  EXPECT_NE(serialize_artifact(fit_routing(source, options)), first);
}

TEST(fit_routing, finds_the_domains_of_a_synthetic_trace) {
  const auto counts = synthetic_counts({.requests = 80});
  const auto routing = fit_routing(counts, {.slots = 4});
  ASSERT_EQ(routing.report.clusters.size(), 4u);
  std::uint32_t total = 0;
  for (const cluster_summary& cluster : routing.report.clusters) {
    total += cluster.requests;
    EXPECT_EQ(cluster.requests, 16u);
    // Splits are random, so a domain need not have exactly a quarter; nearly all must be one.
    EXPECT_GE(cluster.labels.front().requests, 11u);
    EXPECT_LT(cluster.slot_union, cluster.random_union);
  }
  EXPECT_EQ(total, routing.calibration_requests);
  EXPECT_LT(routing.report.held_out_slot_union, routing.report.held_out_random_union);
}

TEST(fit_routing, chooses_by_validation_and_deals_disjoint_splits) {
  const auto counts = synthetic_counts({.requests = 80});
  const auto routing = fit_routing(counts, {.slots = 4});
  const auto& report = routing.report;
  EXPECT_EQ(report.split[0].requests + report.split[1].requests + report.split[2].requests, 80u);
  EXPECT_EQ(report.split[2].requests, 16u);
  EXPECT_EQ(report.split[2].pairs, 16u * 15 / 2);
  ASSERT_EQ(report.scores.size(), 4u);
  for (const representation_score& score : report.scores) {
    if (score.eligible) {
      const auto& chosen = report.scores[static_cast<std::size_t>(routing.kind)];
      EXPECT_LE(score.rho[1], chosen.rho[1]);
    }
  }
  EXPECT_EQ(report.mask_curve.size(), counts.layers);
  if (!report.mask_kept) {
    EXPECT_EQ(routing.mask.size(), counts.layers);
  }
}

TEST(fit_routing, keeps_a_mask_that_helps_and_drops_noise_layers) {
  auto counts = synthetic_counts({.requests = 100, .layers = 4});
  random_source random(1);
  // Layers 1 and 3 of the signatures become noise that says nothing about decode.
  for (std::size_t i = 0; i < counts.prefill.size(); ++i) {
    if (i / counts.experts % 2 == 1) {
      counts.prefill[i] = static_cast<std::uint16_t>(random.below(10) == 0 ? 30 : 0);
    }
  }
  const auto routing = fit_routing(counts, {.slots = 4});
  EXPECT_TRUE(routing.report.mask_kept);
  EXPECT_THAT(routing.mask, ElementsAre(0, 2));
  const auto& chosen = routing.report.scores[static_cast<std::size_t>(routing.kind)];
  EXPECT_GE(routing.report.masked_score.rho[1], chosen.rho[1] + 0.005);
  // A gain that is asked to be impossible keeps all layers.
  const auto strict = fit_routing(counts, {.slots = 4, .mask_gain_min = 2});
  EXPECT_FALSE(strict.report.mask_kept);
  EXPECT_THAT(strict.mask, ElementsAre(0, 1, 2, 3));
}

TEST(fit_routing, never_lets_a_representation_of_empty_signatures_in) {
  // Every request uses every expert, but differently often: idf is zero throughout.
  auto counts = synthetic_counts({.requests = 60, .experts = 8});
  for (auto& cell : counts.prefill) {
    ++cell;
  }
  const auto routing = fit_routing(counts, {.slots = 4});
  const auto& idf = routing.report.scores[1];
  EXPECT_EQ(idf.kind, representation::count_idf);
  EXPECT_FALSE(idf.eligible);
  EXPECT_EQ(idf.zero_norm, routing.calibration_requests);
  EXPECT_NE(routing.kind, representation::count_idf);
  // Binary signatures are all alike, so their rho is undefined.
  EXPECT_TRUE(std::isnan(routing.report.scores[3].rho[1]));
  EXPECT_FALSE(routing.report.scores[3].eligible);
}

TEST(fit_routing, leaves_requests_without_a_signature_out_of_clusters) {
  auto counts = synthetic_counts({.requests = 400, .layers = 1, .experts = 8});
  std::fill_n(counts.prefill.begin(), counts.cells(), std::uint16_t{0});
  std::fill_n(counts.prefill.begin() + static_cast<std::ptrdiff_t>(counts.cells()), counts.cells(),
              std::uint16_t{0});
  const auto routing = fit_routing(counts, {.slots = 4});
  std::uint32_t clustered = 0;
  for (const cluster_summary& cluster : routing.report.clusters) {
    clustered += cluster.requests;
  }
  const auto& chosen = routing.report.scores[static_cast<std::size_t>(routing.kind)];
  EXPECT_EQ(clustered, routing.calibration_requests - chosen.zero_norm);
}

TEST(fit_routing, reports_gate_values_and_never_routes_by_them) {
  auto counts = synthetic_counts({.requests = 60});
  // Perfect predictors of decode, so that they would win if they could.
  counts.gate_probabilities.assign(counts.decode.begin(), counts.decode.end());
  counts.logits = counts.gate_probabilities;
  const auto routing = fit_routing(counts, {.slots = 4});
  ASSERT_EQ(routing.report.scores.size(), 6u);
  EXPECT_NEAR(routing.report.scores[4].rho[1], 1, 1e-6);
  EXPECT_FALSE(routing.report.scores[4].eligible);
  EXPECT_FALSE(routing.report.scores[5].eligible);
  EXPECT_LT(static_cast<std::uint8_t>(routing.kind), routable_representations);
}

TEST(fit_routing, refuses_traces_that_cannot_be_fitted) {
  const auto counts = synthetic_counts({.requests = 20});
  EXPECT_THAT(error_of(counts, {.slots = 17}), HasSubstr("K = 17 is more than the 16 requests"));
  EXPECT_EQ(error_of(counts, {.slots = 16}), "");
  EXPECT_THAT(error_of(counts, {.slots = 0}), HasSubstr("K must be"));
  EXPECT_THAT(error_of(synthetic_counts({.requests = 9}), {.slots = 2}),
              HasSubstr("at least 10 requests and the trace has 9"));
  EXPECT_THAT(error_of(counts, {.slots = 2, .ep_ranks = 5}), HasSubstr("EP ranks"));
  EXPECT_THAT(error_of(counts, {.slots = 2, .validation_share = 0.6, .test_share = 0.6}),
              HasSubstr("shares"));
  EXPECT_THAT(error_of(counts, {.slots = 2, .pairs_max = 1}), HasSubstr("pairs"));
}

TEST(fit_routing, refuses_constant_signatures_and_constant_decode) {
  auto counts = synthetic_counts({.requests = 20});
  for (std::size_t i = counts.cells(); i < counts.prefill.size(); ++i) {
    counts.prefill[i] = counts.prefill[i % counts.cells()];
  }
  EXPECT_THAT(error_of(counts, {.slots = 2}), HasSubstr("all alike"));
  counts = synthetic_counts({.requests = 20});
  for (std::size_t i = counts.cells(); i < counts.decode.size(); ++i) {
    counts.decode[i] = counts.decode[i % counts.cells()];
  }
  EXPECT_THAT(error_of(counts, {.slots = 2}), HasSubstr("all alike"));
}

TEST(fit_routing, refuses_traces_without_prefill_or_decode) {
  auto counts = synthetic_counts({.requests = 20});
  std::ranges::fill(counts.prefill, 0);
  EXPECT_THAT(error_of(counts, {.slots = 2}), HasSubstr("empty"));
  counts = synthetic_counts({.requests = 20});
  std::ranges::fill(counts.decode, 0);
  std::ranges::fill(counts.decode_tokens, 0);
  EXPECT_THAT(error_of(counts, {.slots = 2}), HasSubstr("decode tokens"));
}

TEST(fit_routing, warns_of_one_slot_and_of_empty_layers) {
  auto counts = synthetic_counts({.requests = 40});
  for (std::size_t i = 0; i < counts.prefill.size(); ++i) {
    counts.prefill[i] = i / counts.experts % counts.layers == 1 ? 0 : counts.prefill[i];
  }
  const auto routing = fit_routing(counts, {.slots = 1});
  EXPECT_EQ(routing.report.clusters.size(), 1u);
  EXPECT_THAT(routing.report.warnings, ::testing::Contains(HasSubstr("K = 1")));
  EXPECT_THAT(routing.report.warnings, ::testing::Contains(HasSubstr("layer 1 is empty")));
}

TEST(fit_routing, works_without_labels_and_without_some_decodes) {
  auto counts = synthetic_counts({.requests = 60});
  std::ranges::fill(counts.labels, "");
  counts.decode_tokens[5] = 0;
  std::fill_n(counts.decode.begin() + static_cast<std::ptrdiff_t>(5 * counts.cells()),
              counts.cells(), std::uint16_t{0});
  const auto routing = fit_routing(counts, {.slots = 4});
  ASSERT_EQ(routing.labels.size(), 1u);
  EXPECT_EQ(routing.labels[0].label, "");
  EXPECT_THAT(routing.report.warnings, ::testing::Contains(HasSubstr("no decode tokens")));
}

TEST(fit_routing, samples_a_large_trace_and_infers_experts) {
  const temporary_folder folder;
  testing::write_synthetic_trace(folder.path() / "trace", {});
  std::filesystem::remove(folder.path() / "trace" / "trace.json");
  const auto routing =
      fit_routing(trace::open(folder.path() / "trace"), {.slots = 2, .requests_max = 30});
  EXPECT_EQ(routing.trace_requests, 60u);
  EXPECT_EQ(routing.calibration_requests, 24u);
  EXPECT_EQ(routing.experts, 16u);
  EXPECT_EQ(routing.block_tokens, 16u);
  EXPECT_THAT(routing.report.warnings, ::testing::Contains(HasSubstr("sample of 30")));
  EXPECT_THAT(routing.report.warnings, ::testing::Contains(HasSubstr("taken as 16")));
}

TEST(fit_routing, makes_centroids_that_score_members_as_the_fit_did) {
  const auto counts = synthetic_counts({.requests = 50});
  for (const double gain : {-2.0, 2.0}) {  // The mask is always kept, then never.
    const auto routing = fit_routing(counts, {.slots = 4, .mask_gain_min = gain});
    slot_scorer scorer(routing);
    double best_sum = 0;
    std::vector<float> similarities(4);
    for (std::size_t r = 0; r < counts.requests; ++r) {
      ASSERT_TRUE(scorer.score(std::as_bytes(counts.prefill_of(r)), similarities));
      best_sum += *std::ranges::max_element(similarities);
    }
    EXPECT_NEAR(best_sum / counts.requests, routing.report.objective, 0.1);
  }
}

TEST(recorded_traces, gpt_oss_20b_is_fitted_well) {
  const auto folder = recorded_trace("gpt-oss-20b");
  if (!folder) {
    GTEST_SKIP() << "no recorded trace of gpt-oss-20b here";
  }
  const auto routing = fit_routing(trace::open(*folder), {.slots = 8});
  double best = 0;
  for (const representation_score& score : routing.report.scores) {
    best = std::max(best, score.rho[2]);
  }
  const auto& chosen = routing.report.scores[static_cast<std::size_t>(routing.kind)];
  EXPECT_GE(chosen.rho[2], best - 0.01);
  EXPECT_LT(routing.report.held_out_slot_union, routing.report.held_out_random_union);
}

TEST(reports, name_everything_and_escape_labels) {
  auto counts = synthetic_counts({.requests = 60});
  for (auto& label : counts.labels) {
    label = label == "domain-0" ? "<b>&'\"" : label;
  }
  const auto routing = fit_routing(counts, {.slots = 4, .model = "<model>"});
  const auto text = report_text(routing);
  for (const char* part : {"4 slots", "count*idf", "Mask curve", "held-out", "<b>&"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const auto page = report_html(routing);
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;&amp;&#39;&quot;"));
  EXPECT_THAT(page, HasSubstr("&lt;model&gt;"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("<b>")));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("nan")));
  // Self-contained: nothing is fetched.
  EXPECT_THAT(page, ::testing::Not(HasSubstr("http")));
  EXPECT_THAT(page, ::testing::EndsWith("</html>\n"));
}

TEST(reports, describe_labels_and_layers_in_few_words) {
  EXPECT_EQ(describe_layers({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
  EXPECT_EQ(describe_labels({{"a", 5}, {"", 3}, {"b", 2}, {"c", 1}}, 2),
            "a 5, unlabelled 3, others 3");
}

TEST(plots, stay_finite_for_any_values) {
  const double nan = std::nan("");
  for (const auto& values : std::vector<std::vector<double>>{
           {}, {nan}, {1}, {2, 2, 2}, {-1, nan, 3}, {1e-9, 2e-9}, {1e9, -1e9}}) {
    const auto line = line_plot({{"a", values}}, "x", "y");
    const auto bars = bar_plot({{"a", values}}, std::vector<std::string>(values.size(), "n"), "y");
    for (const auto& svg : {line, bars}) {
      EXPECT_THAT(svg, ::testing::Not(HasSubstr("nan")));
      EXPECT_THAT(svg, ::testing::Not(HasSubstr("inf")));
    }
  }
}

}  // namespace
}  // namespace eldr::fit
