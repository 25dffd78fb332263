#include "fit/fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "fit/error.hpp"
#include "fit/kmeans.hpp"
#include "fit/layer_mask.hpp"
#include "fit/patterns.hpp"
#include "fit/placement.hpp"
#include "fit/random.hpp"
#include "fit/rho.hpp"

namespace eldr::fit {
namespace {

constexpr double undefined = std::numeric_limits<double>::quiet_NaN();
enum split_index : std::size_t { train, validation, test };

/// Streams of random numbers that must not be correlated.
enum class stream : std::uint64_t { sample = 1, split, pairs, kmeans, vanilla };

std::uint64_t seed_of(const fit_options& options, stream purpose, std::uint64_t index = 0) {
  random_source random(options.seed * 64 + static_cast<std::uint64_t>(purpose) * 8 + index);
  return random.next();
}

/// The requests of one split that rho is measured on, and what does not depend on representations.
struct rho_split {
  std::vector<std::uint32_t> requests;
  std::vector<request_pair> pairs;  // Indices into `requests`.
  rank_correlator decode;
};

std::optional<double> rho(const rho_split& split, const std::vector<float>& distances) {
  rank_correlator::scratch memory;
  return split.decode.correlate(distances, memory);
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

/// One fit; its steps in the order in which they run.
class fitter {
 public:
  fitter(const trace_counts& counts, const fit_options& options)
      : counts_(counts), options_(options) {}

  artifact run() {
    check_options();
    set_geometry();
    draw_splits();
    score_representations();
    choose_representation();
    choose_mask();
    cluster();
    summarise_decode();
    return std::move(result_);
  }

 private:
  void check_options() const {
    const auto refuse_unless = [](bool condition, const std::string& sentence) {
      if (!condition) {
        throw fit_error(sentence);
      }
    };
    refuse_unless(options_.slots >= 1 && options_.slots <= 4096,
                  "K must be from 1 to 4096; give the number of decode workers.");
    refuse_unless(options_.batch >= 1, "The decode batch must be at least 1.");
    refuse_unless(options_.validation_share >= 0 && options_.test_share >= 0 &&
                      options_.validation_share + options_.test_share < 1,
                  "The validation and test shares must leave requests to train on.");
    refuse_unless(options_.pairs_max >= 3 && options_.pairs_max <= pairs_limit,
                  "The number of pairs must be from 3 to 1,000,000.");
    refuse_unless(options_.kmeans_iterations_max >= 1, "K-means needs at least one iteration.");
    refuse_unless(options_.ep_ranks >= 1 && counts_.experts % options_.ep_ranks == 0,
                  "The number of EP ranks must divide the number of experts (" +
                      std::to_string(counts_.experts) + ").");
    refuse_unless(counts_.requests >= fit_requests_min,
                  "A fit needs at least " + std::to_string(fit_requests_min) +
                      " requests and the trace has " + std::to_string(counts_.requests) +
                      "; record more.");
  }

  void set_geometry() {
    result_.model = options_.model;
    result_.layers = counts_.layers;
    result_.experts = counts_.experts;
    result_.experts_per_token = counts_.experts_per_token;
    result_.block_tokens = options_.block_tokens == 0 ? 16 : options_.block_tokens;
    result_.slots = options_.slots;
    result_.ep_ranks = options_.ep_ranks;
    result_.seed = options_.seed;
    result_.tool_version = ELDR_VERSION;
    if (options_.slots == 1) {
      warn("K = 1: every request goes to the one slot, so routing is by load alone");
    }
    std::vector<std::uint64_t> chosen(counts_.layers, 0);
    for (std::size_t i = 0; i < counts_.prefill.size(); ++i) {
      chosen[i / counts_.experts % counts_.layers] += counts_.prefill[i];
    }
    for (std::size_t layer = 0; layer < chosen.size(); ++layer) {
      if (chosen[layer] == 0) {
        warn("layer " + std::to_string(layer) + " is empty: no prefill token chose an expert");
      }
    }
  }

  void draw_splits() {
    std::vector<std::uint32_t> order(counts_.requests);
    std::iota(order.begin(), order.end(), 0u);
    random_source(seed_of(options_, stream::split)).shuffle(std::span(order));
    const auto share = [this](double part) {
      const double wanted = std::round(part * counts_.requests);
      return static_cast<std::size_t>(std::max(wanted, 3.0));
    };
    const std::size_t test_size = share(options_.test_share);
    const std::size_t validation_size = share(options_.validation_share);
    const std::size_t train_size = order.size() - test_size - validation_size;
    const auto cut = [&order](std::size_t first, std::size_t count) {
      std::vector<std::uint32_t> part(order.begin() + static_cast<std::ptrdiff_t>(first),
                                      order.begin() + static_cast<std::ptrdiff_t>(first + count));
      std::ranges::sort(part);
      return part;
    };
    calibration_ = cut(0, train_size + validation_size);
    add_split(train, cut(0, train_size));
    add_split(validation, cut(train_size, validation_size));
    add_split(test, cut(train_size + validation_size, test_size));
    idf_ = inverse_document_frequency(counts_, calibration_);
    result_.labels = count_labels(counts_, calibration_);
    result_.calibration_requests = static_cast<std::uint32_t>(calibration_.size());
    result_.trace_requests = counts_.requests;
  }

  void add_split(split_index index, std::vector<std::uint32_t> requests) {
    const auto all = requests.size();
    test_requests_ = requests;  // The last split added is the test split.
    std::erase_if(requests, [this](std::uint32_t r) { return counts_.decode_tokens[r] == 0; });
    if (requests.size() < 3) {
      throw fit_error("The " + std::string(split_names[index]) + " split has only " +
                      std::to_string(requests.size()) +
                      " requests with decode tokens and needs 3; record more requests.");
    }
    if (requests.size() < all) {
      warn(std::to_string(all - requests.size()) + " requests of the " +
           std::string(split_names[index]) +
           " split have no decode tokens and do not count for rho");
    }
    const auto pairs = choose_pairs(static_cast<std::uint32_t>(requests.size()), options_.pairs_max,
                                    seed_of(options_, stream::pairs, index));
    const auto decode = decode_features(counts_, requests, options_.threads);
    rank_correlator target(pair_similarities(decode, pairs, options_.threads).distances());
    result_.report.split[index] = {static_cast<std::uint32_t>(all),
                                   static_cast<std::uint32_t>(pairs.size())};
    splits_.push_back({std::move(requests), pairs, std::move(target)});
  }

  pair_similarities similarities(representation kind, split_index index) const {
    const rho_split& split = splits_[index];
    const auto features = signature_features(counts_, kind, idf_, split.requests, options_.threads);
    return pair_similarities(features, split.pairs, options_.threads);
  }

  void score_representations() {
    for (std::uint8_t i = 0; i < representations; ++i) {
      const auto kind = static_cast<representation>(i);
      if (!available(counts_, kind)) {
        continue;
      }
      representation_score score{.kind = kind};
      for (std::size_t s = 0; s < splits; ++s) {
        const auto index = static_cast<split_index>(s);
        score.rho[s] = rho(splits_[s], similarities(kind, index).distances()).value_or(undefined);
      }
      score.zero_norm = count_zero_norms(kind, all_layers());
      score.eligible = i < routable_representations && norms_suffice(score.zero_norm) &&
                       !std::isnan(score.rho[validation]);
      result_.report.scores.push_back(score);
    }
  }

  std::vector<std::uint32_t> all_layers() const {
    std::vector<std::uint32_t> layers(counts_.layers);
    std::iota(layers.begin(), layers.end(), 0u);
    return layers;
  }

  bool norms_suffice(std::uint32_t zero_norm) const {
    return zero_norm <= options_.zero_norm_share_max * static_cast<double>(calibration_.size());
  }

  /// Calibration requests that have no direction over these layers.
  std::uint32_t count_zero_norms(representation kind, std::span<const std::uint32_t> layers) const {
    const auto norms =
        squared_norms(signature_features(counts_, kind, idf_, calibration_, options_.threads));
    return static_cast<std::uint32_t>(calibration_.size() - with_direction(norms, layers).size());
  }

  /// Indices into calibration_ of the requests whose norm over these layers is not zero.
  std::vector<std::uint32_t> with_direction(std::span<const float> squared_norms,
                                            std::span<const std::uint32_t> layers) const {
    std::vector<std::uint32_t> result;
    for (std::uint32_t i = 0; i < calibration_.size(); ++i) {
      if (std::ranges::any_of(layers, [&](std::uint32_t layer) {
            return squared_norms[layer * calibration_.size() + i] > 0;
          })) {
        result.push_back(i);
      }
    }
    return result;
  }

  void choose_representation() {
    const representation_score* best = nullptr;
    for (const representation_score& score : result_.report.scores) {
      if (score.eligible && (best == nullptr || score.rho[validation] > best->rho[validation])) {
        best = &score;
      }
    }
    if (best == nullptr) {
      throw fit_error(
          "No representation can be fitted: the signatures or the decode patterns are all alike, "
          "or more than 1 % of them are empty; record more varied prompts, with their prefill.");
    }
    result_.kind = best->kind;
    chosen_score_ = *best;
  }

  void choose_mask() {
    const auto on_train = similarities(result_.kind, train);
    const auto on_validation = similarities(result_.kind, validation);
    const auto curve = search_layer_mask(on_train, splits_[train].decode, options_.threads);
    std::vector<std::uint32_t> prefix;
    for (const mask_step& step : curve) {
      prefix.push_back(step.layer);
      const auto value = rho(splits_[validation], on_validation.distances(prefix));
      result_.report.mask_curve.push_back({step.layer, step.rho, value.value_or(undefined)});
    }
    const auto mask = best_prefix(curve);
    representation_score score{.kind = result_.kind};
    score.rho = {
        rho(splits_[train], on_train.distances(mask)).value_or(undefined),
        rho(splits_[validation], on_validation.distances(mask)).value_or(undefined),
        rho(splits_[test], similarities(result_.kind, test).distances(mask)).value_or(undefined)};
    score.zero_norm = count_zero_norms(result_.kind, mask);
    score.eligible = norms_suffice(score.zero_norm);
    const double gain = score.rho[validation] - chosen_score_.rho[validation];
    result_.report.mask_kept = score.eligible && gain >= options_.mask_gain_min;
    result_.report.masked_score = score;
    result_.mask = result_.report.mask_kept ? mask : all_layers();
    if (result_.kind == representation::count_idf) {
      for (const std::uint32_t layer : result_.mask) {
        const auto first = idf_.begin() + std::ptrdiff_t{layer} * counts_.experts;
        result_.weights.insert(result_.weights.end(), first, first + counts_.experts);
      }
    }
  }

  void cluster() {
    const auto all =
        signature_features(counts_, result_.kind, idf_, calibration_, options_.threads);
    for (const std::uint32_t i : with_direction(squared_norms(all), result_.mask)) {
      clustered_.push_back(calibration_[i]);
    }
    if (clustered_.size() < options_.slots) {
      throw fit_error("K = " + std::to_string(options_.slots) + " is more than the " +
                      std::to_string(clustered_.size()) + " requests left to cluster (" +
                      std::to_string(counts_.requests) + " less those of the test split and " +
                      "those without a signature); give a smaller K or record more requests.");
    }
    features_ = signature_features(counts_, result_.kind, idf_, clustered_, options_.threads);
    const cosine_matrix cosine = cosines(features_, result_.mask, options_.threads);
    kmeans_options kmeans{.clusters = options_.slots,
                          .iterations_max = options_.kmeans_iterations_max,
                          .seeds = options_.kmeans_seeds,
                          .seed = seed_of(options_, stream::kmeans),
                          .threads = options_.threads};
    balanced_ = spherical_kmeans(cosine, kmeans);
    kmeans.balanced = false;
    kmeans.seed = seed_of(options_, stream::vanilla);
    const clustering vanilla = spherical_kmeans(cosine, kmeans);
    result_.centroids = centroid_vectors(features_, result_.mask, balanced_);
    result_.vanilla_centroids = centroid_vectors(features_, result_.mask, vanilla);
    result_.report.objective = balanced_.objective;
    result_.report.vanilla_objective = vanilla.objective;
    result_.report.vanilla_sizes.assign(options_.slots, 0);
    for (const std::uint32_t slot : vanilla.cluster_of) {
      ++result_.report.vanilla_sizes[slot];
    }
  }

  void summarise_decode() {
    result_.global_pattern = mean_decode_pattern(counts_, calibration_);
    result_.report.union_batch = options_.batch;
    std::vector<std::vector<std::uint32_t>> members(options_.slots);
    for (std::size_t i = 0; i < clustered_.size(); ++i) {
      members[balanced_.cluster_of[i]].push_back(clustered_[i]);
    }
    for (const auto& requests : members) {
      summarise_slot(requests);
    }
    summarise_held_out();
  }

  void summarise_slot(std::span<const std::uint32_t> members) {
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
      const auto ranks = place_experts(pattern, counts_.layers, counts_.experts, options_.ep_ranks,
                                       options_.batch);
      result_.ep_rank_of.insert(result_.ep_rank_of.end(), ranks.begin(), ranks.end());
    }
    result_.cluster_patterns.insert(result_.cluster_patterns.end(), pattern.begin(), pattern.end());
  }

  /// Test requests in the slot of their nearest centroid, against random batches.
  void summarise_held_out() {
    const auto features =
        signature_features(counts_, result_.kind, idf_, test_requests_, options_.threads);
    double slot_sum = 0;
    double random_sum = 0;
    std::size_t used = 0;
    for (std::size_t i = 0; i < test_requests_.size(); ++i) {
      const std::uint32_t request = test_requests_[i];
      const auto pattern = mean_decode_pattern(counts_, std::span(&request, 1));
      if (pattern.empty()) {
        continue;
      }
      const std::size_t first = nearest_slot(features, i) * counts_.cells();
      const auto slot = std::span(result_.cluster_patterns).subspan(first, counts_.cells());
      slot_sum += expected_union(pattern, slot, counts_.layers, options_.batch);
      random_sum += expected_union(pattern, result_.global_pattern, counts_.layers, options_.batch);
      ++used;
    }
    const double scale = used == 0 ? undefined : 1.0 / static_cast<double>(used);
    result_.report.held_out_slot_union = slot_sum * scale;
    result_.report.held_out_random_union = random_sum * scale;
  }

  std::size_t nearest_slot(const layer_features& features, std::size_t request) const {
    const std::size_t layer_cells = counts_.experts;
    std::vector<float> dots(options_.slots, 0);
    for (std::size_t slot = 0; slot < options_.slots; ++slot) {
      for (std::size_t i = 0; i < result_.mask.size(); ++i) {
        const auto row = features.row(result_.mask[i], request);
        const auto centroid =
            result_.centroids.begin() +
            static_cast<std::ptrdiff_t>((slot * result_.mask.size() + i) * layer_cells);
        dots[slot] = std::inner_product(row.begin(), row.end(), centroid, dots[slot]);
      }
    }
    return static_cast<std::size_t>(std::ranges::max_element(dots) - dots.begin());
  }

  void warn(std::string text) { result_.report.warnings.push_back(std::move(text)); }

  const trace_counts& counts_;
  const fit_options& options_;
  artifact result_;
  std::vector<rho_split> splits_;
  std::vector<std::uint32_t> calibration_;
  std::vector<std::uint32_t> test_requests_;
  std::vector<float> idf_;
  representation_score chosen_score_;
  std::vector<std::uint32_t> clustered_;  // Calibration requests with a direction.
  layer_features features_;               // Of the clustered requests.
  clustering balanced_;
};

/// All requests, or a seeded sample of them, ascending.
std::vector<std::uint32_t> sample_requests(std::size_t requests, const fit_options& options) {
  std::vector<std::uint32_t> chosen(requests);
  std::iota(chosen.begin(), chosen.end(), 0u);
  if (requests > options.requests_max) {
    random_source(seed_of(options, stream::sample)).shuffle(std::span(chosen));
    chosen.resize(options.requests_max);
    std::ranges::sort(chosen);
  }
  return chosen;
}

}  // namespace

artifact fit_routing(const trace_counts& counts, const fit_options& options) {
  return fitter(counts, options).run();
}

artifact fit_routing(const trace& source, const fit_options& options) {
  std::vector<std::string> warnings;
  fit_options completed = options;
  if (completed.experts == 0) {
    completed.experts = source.properties().experts;
  }
  if (completed.experts == 0) {
    completed.experts = source.experts_seen();
    warnings.push_back("the trace does not say how many experts a layer has; taken as " +
                       std::to_string(completed.experts) + ", the highest id plus one");
  }
  if (completed.block_tokens == 0) {
    completed.block_tokens = source.properties().block_tokens;
  }
  if (completed.model.empty()) {
    completed.model = source.properties().model;
  }
  const auto which = sample_requests(source.requests().size(), completed);
  if (which.size() < source.requests().size()) {
    warnings.push_back("the fit uses a sample of " + std::to_string(which.size()) +
                       " requests of the trace");
  }
  artifact result =
      fit_routing(count_trace(source, completed.experts, which, completed.threads), completed);
  result.trace_digest = source.digest();
  result.trace_source = source.properties().source;
  result.trace_requests = static_cast<std::uint32_t>(source.requests().size());
  result.report.warnings.insert(result.report.warnings.begin(), warnings.begin(), warnings.end());
  return result;
}

}  // namespace eldr::fit
