#include "fit/fit.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "fit/error.hpp"
#include "fit/kmeans.hpp"
#include "fit/patterns.hpp"
#include "fit/placement.hpp"
#include "fit/random.hpp"
#include "fit/rho.hpp"
#include "fit/seeds.hpp"
#include "fit/selection.hpp"

namespace eldr::fit {
namespace {

void refuse_unless(bool condition, const std::string& sentence) {
  if (!condition) {
    throw fit_error(sentence);
  }
}

void check_options(const trace_counts& counts, const fit_options& options) {
  refuse_unless(options.slots >= 1 && options.slots <= 4096,
                "K must be from 1 to 4096; give the number of decode workers.");
  refuse_unless(options.batch >= 1, "The decode batch must be at least 1.");
  refuse_unless(options.validation_share >= 0 && options.test_share >= 0 &&
                    options.validation_share + options.test_share < 1,
                "The validation and test shares must leave requests to train on.");
  refuse_unless(options.pairs_max >= 3 && options.pairs_max <= pairs_limit,
                "The number of pairs must be from 3 to 1,000,000.");
  refuse_unless(options.kmeans_iterations_max >= 1, "K-means needs at least one iteration.");
  refuse_unless(options.ep_ranks >= 1 && counts.experts % options.ep_ranks == 0,
                "The number of EP ranks must divide the number of experts, " +
                    std::to_string(counts.experts) + ".");
  refuse_unless(counts.requests >= fit_requests_min,
                "A fit needs at least " + std::to_string(fit_requests_min) +
                    " requests and the trace has " + std::to_string(counts.requests) +
                    "; record more.");
}

std::vector<label_count> count_labels(const trace_counts& counts,
                                      std::span<const std::uint32_t> which) {
  std::map<std::string, std::uint32_t> by_label;
  for (const std::uint32_t request : which) {
    ++by_label[counts.labels[request]];
  }
  std::vector<label_count> result;
  for (const auto& [label, requests] : by_label) {
    result.push_back({label, requests});
  }
  std::ranges::stable_sort(result, std::ranges::greater{}, &label_count::requests);
  return result;
}

/// Layers in which no prefill token chose an expert.
std::vector<std::uint32_t> empty_layers(const trace_counts& counts) {
  std::vector<std::uint32_t> result;
  for (std::uint32_t layer = 0; layer < counts.layers; ++layer) {
    bool empty = true;
    for (std::size_t request = 0; request < counts.requests && empty; ++request) {
      const auto cells =
          counts.prefill_of(request).subspan(std::size_t{layer} * counts.experts, counts.experts);
      empty = std::ranges::all_of(cells, [](std::uint16_t count) { return count == 0; });
    }
    if (empty) {
      result.push_back(layer);
    }
  }
  return result;
}

/// One fit; its steps in the order in which they run.
class fitter {
 public:
  fitter(const trace_counts& counts, const fit_options& options)
      : counts_(counts),
        options_(options),
        dealt_(split_requests(counts.requests, options)),
        selected_(select_transform(counts, dealt_, options)) {}

  artifact run() {
    describe();
    adopt_selection();
    cluster();
    summarise_slots();
    summarise_held_out();
    return std::move(result_);
  }

 private:
  void describe() {
    result_.model = options_.model;
    result_.layers = counts_.layers;
    result_.experts = counts_.experts;
    result_.experts_per_token = counts_.experts_per_token;
    result_.block_tokens = options_.block_tokens == 0 ? 16 : options_.block_tokens;
    result_.slots = options_.slots;
    result_.ep_ranks = options_.ep_ranks;
    result_.tool_version = ELDR_VERSION;
    result_.trace_requests = counts_.requests;
    result_.calibration_requests = static_cast<std::uint32_t>(dealt_.calibration.size());
    result_.seed = options_.seed;
    result_.labels = count_labels(counts_, dealt_.calibration);
    auto& warnings = result_.report.warnings;
    if (options_.slots == 1) {
      warnings.push_back("K = 1: every request has the same slot, so routing is by load alone");
    }
    for (const std::uint32_t layer : empty_layers(counts_)) {
      warnings.push_back("layer " + std::to_string(layer) +
                         " is empty: no prefill token chose an expert");
    }
  }

  void adopt_selection() {
    fit_report& report = result_.report;
    std::ranges::copy(selected_.split_sizes, report.split.begin());
    report.scores = selected_.scores;
    report.mask_curve = selected_.mask_curve;
    report.masked_score = selected_.masked_score;
    report.mask_kept = selected_.mask_kept;
    report.warnings.insert(report.warnings.end(), selected_.warnings.begin(),
                           selected_.warnings.end());
    result_.kind = selected_.kind;
    result_.mask = selected_.mask;
    if (selected_.kind == representation::count_idf) {
      for (const std::uint32_t layer : selected_.mask) {
        const auto first = selected_.idf.begin() + std::ptrdiff_t{layer} * counts_.experts;
        result_.weights.insert(result_.weights.end(), first, first + counts_.experts);
      }
    }
  }

  void cluster() {
    for (const std::uint32_t request : dealt_.calibration) {
      if (has_direction(counts_, request, selected_.kind, selected_.idf, selected_.mask)) {
        clustered_.push_back(request);
      }
    }
    refuse_unless(clustered_.size() >= options_.slots,
                  "K = " + std::to_string(options_.slots) + " is more than the " +
                      std::to_string(clustered_.size()) + " requests left to cluster (of " +
                      std::to_string(counts_.requests) + ", " +
                      std::to_string(dealt_.requests[test_split].size()) +
                      " are held out for the test); give a smaller K or record more requests.");
    const auto features = features_of(clustered_);
    const cosine_matrix cosine = cosines(features, selected_.mask, options_.threads);
    kmeans_options kmeans{.clusters = options_.slots,
                          .iterations_max = options_.kmeans_iterations_max,
                          .seeds = options_.kmeans_seeds,
                          .seed = seed_of(options_.seed, random_stream::balanced),
                          .threads = options_.threads};
    const clustering balanced = spherical_kmeans(cosine, kmeans);
    kmeans.balanced = false;
    kmeans.seed = seed_of(options_.seed, random_stream::vanilla);
    const clustering vanilla = spherical_kmeans(cosine, kmeans);
    result_.centroids = centroid_vectors(features, selected_.mask, balanced);
    result_.vanilla_centroids = centroid_vectors(features, selected_.mask, vanilla);
    result_.report.objective = balanced.objective;
    result_.report.vanilla_objective = vanilla.objective;
    result_.report.vanilla_sizes.assign(options_.slots, 0);
    members_.resize(options_.slots);
    for (std::size_t i = 0; i < clustered_.size(); ++i) {
      ++result_.report.vanilla_sizes[vanilla.cluster_of[i]];
      members_[balanced.cluster_of[i]].push_back(clustered_[i]);
    }
  }

  layer_features features_of(std::span<const std::uint32_t> requests) const {
    return signature_features(counts_, selected_.kind, selected_.idf, requests, options_.threads);
  }

  void summarise_slots() {
    result_.global_pattern = mean_decode_pattern(counts_, dealt_.calibration);
    result_.report.union_batch = options_.batch;
    for (const auto& members : members_) {
      std::vector<float> pattern = mean_decode_pattern(counts_, members);
      if (pattern.empty()) {
        pattern = result_.global_pattern;
      }
      result_.report.clusters.push_back(
          {.requests = static_cast<std::uint32_t>(members.size()),
           .labels = count_labels(counts_, members),
           .slot_union = expected_union(pattern, pattern, counts_.layers, options_.batch),
           .random_union =
               expected_union(pattern, result_.global_pattern, counts_.layers, options_.batch)});
      if (options_.ep_ranks > 1) {
        const auto ranks = place_experts(pattern, counts_.layers, counts_.experts,
                                         options_.ep_ranks, options_.batch);
        result_.ep_rank_of.insert(result_.ep_rank_of.end(), ranks.begin(), ranks.end());
      }
      result_.cluster_patterns.insert(result_.cluster_patterns.end(), pattern.begin(),
                                      pattern.end());
    }
  }

  /// Test requests in a batch of the slot of their nearest centroid, against random batches.
  void summarise_held_out() {
    const auto& requests = dealt_.requests[test_split];
    const auto features = features_of(requests);
    double slot_sum = 0;
    double random_sum = 0;
    double used = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto pattern = mean_decode_pattern(counts_, std::span(&requests[i], 1));
      if (pattern.empty()) {
        continue;
      }
      const auto slot = std::span(result_.cluster_patterns)
                            .subspan(nearest_slot(features, i) * counts_.cells(), counts_.cells());
      slot_sum += expected_union(pattern, slot, counts_.layers, options_.batch);
      random_sum += expected_union(pattern, result_.global_pattern, counts_.layers, options_.batch);
      ++used;
    }
    // Not 0 / 0: the selection has seen at least three test requests that decode.
    result_.report.held_out_slot_union = slot_sum / used;
    result_.report.held_out_random_union = random_sum / used;
  }

  std::size_t nearest_slot(const layer_features& features, std::size_t request) const {
    std::vector<float> dots(options_.slots, 0);
    auto centroid = result_.centroids.begin();
    for (float& dot : dots) {
      for (const std::uint32_t layer : result_.mask) {
        const auto row = features.row(layer, request);
        dot = std::inner_product(row.begin(), row.end(), centroid, dot);
        centroid += std::ssize(row);
      }
    }
    return static_cast<std::size_t>(std::ranges::max_element(dots) - dots.begin());
  }

  const trace_counts& counts_;
  const fit_options& options_;
  const request_splits dealt_;
  const transform_selection selected_;
  artifact result_;
  std::vector<std::uint32_t> clustered_;             // Calibration requests with a direction.
  std::vector<std::vector<std::uint32_t>> members_;  // [slots], of the balanced clusters
};

/// All requests, or a seeded sample of them, ascending.
std::vector<std::uint32_t> sample_requests(std::size_t requests, const fit_options& options) {
  std::vector<std::uint32_t> chosen(requests);
  std::iota(chosen.begin(), chosen.end(), 0u);
  if (requests > options.requests_max) {
    random_source(seed_of(options.seed, random_stream::sample)).shuffle(std::span(chosen));
    chosen.resize(options.requests_max);
    std::ranges::sort(chosen);
  }
  return chosen;
}

}  // namespace

artifact fit_routing(const trace_counts& counts, const fit_options& options) {
  check_options(counts, options);
  return fitter(counts, options).run();
}

artifact fit_routing(const trace& source, const fit_options& options) {
  const trace_properties& properties = source.properties();
  std::vector<std::string> warnings;
  fit_options completed = options;
  if (completed.experts == 0) {
    completed.experts = properties.experts;
  }
  if (completed.experts == 0) {
    completed.experts = source.experts_seen();
    warnings.push_back("the trace does not say how many experts a layer has; taken as " +
                       std::to_string(completed.experts) + ", the highest id plus one");
  }
  if (completed.block_tokens == 0) {
    completed.block_tokens = properties.block_tokens;
  }
  if (completed.model.empty()) {
    completed.model = properties.model;
  }
  const auto which = sample_requests(source.requests().size(), completed);
  if (which.size() < source.requests().size()) {
    warnings.push_back("the fit uses a sample of " + std::to_string(which.size()) +
                       " requests of the trace");
  }
  artifact result =
      fit_routing(count_trace(source, completed.experts, which, completed.threads), completed);
  result.trace_digest = source.digest();
  result.trace_source = properties.source;
  result.trace_requests = static_cast<std::uint32_t>(source.requests().size());
  result.report.warnings.insert(result.report.warnings.begin(), warnings.begin(), warnings.end());
  return result;
}

}  // namespace eldr::fit
