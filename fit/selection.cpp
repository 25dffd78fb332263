#include "fit/selection.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "fit/error.hpp"
#include "fit/layer_mask.hpp"
#include "fit/random.hpp"
#include "fit/rho.hpp"
#include "fit/seeds.hpp"

namespace eldr::fit {
namespace {

constexpr double undefined = std::numeric_limits<double>::quiet_NaN();
// Three requests make three pairs, the fewest that can be ranked to any purpose.
constexpr std::size_t split_requests_min = 3;

/// The requests of a split that rho is measured on, and what all representations share.
struct rho_split {
  std::vector<std::uint32_t> requests;
  std::vector<request_pair> pairs;  // Indices into `requests`.
  rank_correlator decode;
};

double rho(const rho_split& split, const std::vector<float>& distances) {
  rank_correlator::scratch memory;
  return split.decode.correlate(distances, memory).value_or(undefined);
}

class selector {
 public:
  selector(const trace_counts& counts, const request_splits& dealt, const fit_options& options)
      : counts_(counts), dealt_(dealt), options_(options), all_layers_(counts.layers) {
    std::iota(all_layers_.begin(), all_layers_.end(), 0u);
  }

  transform_selection run() {
    for (std::size_t split = 0; split < splits; ++split) {
      prepare_split(split);
    }
    result_.idf = inverse_document_frequency(counts_, dealt_.calibration);
    score_representations();
    choose_mask();
    return std::move(result_);
  }

 private:
  void prepare_split(std::size_t index) {
    std::vector<std::uint32_t> requests = dealt_.requests[index];
    const std::size_t all = requests.size();
    std::erase_if(requests, [this](std::uint32_t r) { return counts_.decode_tokens[r] == 0; });
    const std::string name = std::string(split_names[index]) + " split";
    if (requests.size() < split_requests_min) {
      throw fit_error("The " + name + " has only " + std::to_string(requests.size()) +
                      " requests with decode tokens and needs 3; record more requests.");
    }
    if (requests.size() < all) {
      result_.warnings.push_back(std::to_string(all - requests.size()) + " requests of the " +
                                 name + " have no decode tokens and do not count for rho");
    }
    auto pairs = choose_pairs(static_cast<std::uint32_t>(requests.size()), options_.pairs_max,
                              seed_of(options_.seed, random_stream::pairs, index));
    const auto decode = decode_features(counts_, requests, options_.threads);
    rank_correlator target(pair_similarities(decode, pairs, options_.threads).distances());
    result_.split_sizes.push_back(
        {static_cast<std::uint32_t>(all), static_cast<std::uint32_t>(pairs.size())});
    splits_.push_back({std::move(requests), std::move(pairs), std::move(target)});
  }

  void score_representations() {
    const representation_score* best = nullptr;
    result_.scores.reserve(representations);  // `best` points into it.
    for (std::uint8_t i = 0; i < representations; ++i) {
      const auto kind = static_cast<representation>(i);
      if (!available(counts_, kind)) {
        continue;
      }
      auto similarities = compare_signatures(kind);
      const auto& score =
          result_.scores.emplace_back(score_layers(kind, similarities, all_layers_));
      if (score.eligible &&
          (best == nullptr || score.rho[validation_split] > best->rho[validation_split])) {
        best = &score;
        chosen_ = std::move(similarities);
      }
    }
    if (best == nullptr) {
      throw fit_error(
          "No representation can be fitted: the signatures or the decode patterns are all alike, "
          "or more than 1 % of the signatures are empty; record more varied prompts, with their "
          "prefill.");
    }
    result_.kind = best->kind;
    unmasked_rho_ = best->rho[validation_split];
  }

  /// Pair by pair, per split.
  std::vector<pair_similarities> compare_signatures(representation kind) const {
    std::vector<pair_similarities> result;
    for (const rho_split& split : splits_) {
      result.emplace_back(
          signature_features(counts_, kind, result_.idf, split.requests, options_.threads),
          split.pairs, options_.threads);
    }
    return result;
  }

  representation_score score_layers(representation kind,
                                    const std::vector<pair_similarities>& similarities,
                                    const std::vector<std::uint32_t>& layers) const {
    representation_score score{.kind = kind};
    for (std::size_t split = 0; split < splits; ++split) {
      score.rho[split] = rho(splits_[split], similarities[split].distances(layers));
    }
    score.zero_norm = static_cast<std::uint32_t>(
        std::ranges::count_if(dealt_.calibration, [&](std::uint32_t request) {
          return !has_direction(counts_, request, kind, result_.idf, layers);
        }));
    const double zero_norms_max =
        options_.zero_norm_share_max * static_cast<double>(dealt_.calibration.size());
    score.eligible = static_cast<std::uint8_t>(kind) < routable_representations &&
                     score.zero_norm <= zero_norms_max && !std::isnan(score.rho[validation_split]);
    return score;
  }

  void choose_mask() {
    const auto curve =
        search_layer_mask(chosen_[train_split], splits_[train_split].decode, options_.threads);
    std::vector<std::uint32_t> prefix;
    for (const mask_step& step : curve) {
      prefix.push_back(step.layer);
      result_.mask_curve.push_back(
          {step.layer, step.rho,
           rho(splits_[validation_split], chosen_[validation_split].distances(prefix))});
    }
    auto mask = best_prefix(curve);
    result_.masked_score = score_layers(result_.kind, chosen_, mask);
    const double gain = result_.masked_score.rho[validation_split] - unmasked_rho_;
    result_.mask_kept = result_.masked_score.eligible && gain >= options_.mask_gain_min;
    result_.mask = result_.mask_kept ? std::move(mask) : all_layers_;
  }

  const trace_counts& counts_;
  const request_splits& dealt_;
  const fit_options& options_;
  std::vector<std::uint32_t> all_layers_;
  std::vector<rho_split> splits_;
  std::vector<pair_similarities> chosen_;  // Of the best representation so far, per split.
  double unmasked_rho_ = 0;                // Its validation rho.
  transform_selection result_;
};

}  // namespace

request_splits split_requests(std::uint32_t requests, const fit_options& options) {
  std::vector<std::uint32_t> order(requests);
  std::iota(order.begin(), order.end(), 0u);
  random_source(seed_of(options.seed, random_stream::splits)).shuffle(std::span(order));
  const auto size_of = [requests](double share) {
    return std::max(static_cast<std::size_t>(std::round(share * requests)), split_requests_min);
  };
  const std::size_t validation_size = size_of(options.validation_share);
  const std::size_t test_size = size_of(options.test_share);
  const std::size_t train_size =
      requests - std::min<std::size_t>(requests, validation_size + test_size);
  const auto cut = [&order](std::size_t first, std::size_t last) {
    std::vector<std::uint32_t> part(order.begin() + static_cast<std::ptrdiff_t>(first),
                                    order.begin() + static_cast<std::ptrdiff_t>(last));
    std::ranges::sort(part);
    return part;
  };
  const std::size_t calibration_size = train_size + validation_size;
  return {.requests = {cut(0, train_size), cut(train_size, calibration_size),
                       cut(calibration_size, requests)},
          .calibration = cut(0, calibration_size)};
}

transform_selection select_transform(const trace_counts& counts, const request_splits& dealt,
                                     const fit_options& options) {
  return selector(counts, dealt, options).run();
}

bool has_direction(const trace_counts& counts, std::uint32_t request, representation kind,
                   std::span<const float> idf, std::span<const std::uint32_t> layers) {
  const std::size_t first = request * counts.cells();
  const auto nonzero = [&](std::size_t cell) {
    switch (kind) {
      case representation::count_idf:
        return counts.prefill[first + cell] > 0 && idf[cell] != 0;
      case representation::gate_probability:
        return counts.gate_probabilities[first + cell] != 0;
      case representation::gate_logit:
        return counts.logits[first + cell] != 0;
      default:
        return counts.prefill[first + cell] > 0;
    }
  };
  for (const std::uint32_t layer : layers) {
    for (std::size_t expert = 0; expert < counts.experts; ++expert) {
      if (nonzero(std::size_t{layer} * counts.experts + expert)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace eldr::fit
