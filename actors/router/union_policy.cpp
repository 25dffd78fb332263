#include "actors/router/union_policy.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "actors/router/band.hpp"
#include "actors/router/load_policies.hpp"
#include "actors/router/slot_similarity.hpp"
#include "actors/router/step_time_model.hpp"
#include "actors/router/union_kernels.hpp"

namespace eldr::actors {

namespace {

/// What a worker's requests in flight are expected to need.
struct worker_union {
  std::vector<std::int64_t> sum;  ///< Of -2^16 ln(1 - p) over requests, per cell: exact to undo.
  std::vector<float> free;        ///< exp(-sum / 2^16)
  float expected = 0;             ///< Distinct experts over all layers.
};

class union_policy final : public routing_policy {
 public:
  union_policy(std::string_view name, const policy_options& o)
      : name_(name),
        cells_(std::size_t{o.layers} * o.experts),
        tau_(o.union_tau),
        candidates_min_(o.candidates_min),
        artifact_(o.artifact),
        mean_(cells_, o.experts == 0 ? 0.0F
                                     : static_cast<float>(o.experts_per_token) /
                                           static_cast<float>(o.experts)),
        p_(cells_) {
    if (cells_ == 0) {
      throw std::invalid_argument("policy '" + name_ + "' needs the model's geometry");
    }
    if (artifact_) {
      similarity_.emplace(*artifact_, fit::centroid_set::balanced, o.decode_nodes);
    }
  }

  std::string_view name() const noexcept override { return name_; }

  std::size_t choose(const routing_request& request, std::span<const decode_candidate> candidates,
                     decision& why) override {
    note_loads(candidates, why);
    const bool usable =
        request.signature.size() == cells_ * sizeof(std::uint16_t) && request.tokens > 0;
    bool zero_norm = false;
    const bool scored = similarity_ && similarity_->score(request.signature, zero_norm);
    predict(request, usable, scored);
    mark_band(candidates, scored, why);
    std::size_t best = candidates.size();
    double best_cost = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const auto cost = cost_of(candidates[i]);
      if (i < why.count) {
        why.entries[i].cost = static_cast<float>(cost);
        why.entries[i].in_band = entries_[i].in_band;
      }
      if (entries_[i].in_band &&
          (best == candidates.size() || cost < best_cost ||
           (cost == best_cost && candidates[i].in_flight < candidates[best].in_flight))) {
        best = i;
        best_cost = cost;
      }
    }
    why.why = usable ? decision::ground::cost : decision::ground::no_signature;
    why.chosen = static_cast<std::uint32_t>(best);
    return best;
  }

  void placed(const attempt_key& key, std::string_view node) override {
    auto& flight = in_flight_[key];
    if (!flight.increment.empty()) {
      remove(flight);
    }
    flight.node = node;
    flight.increment = take_buffer();
    union_kernels::increments(p_, flight.increment);
    auto& w = worker(node);
    w.expected = union_kernels::apply(flight.increment, +1, w.sum, w.free);
  }

  void ended(const attempt_key& key, std::string_view node) override {
    const auto found = in_flight_.find(key);
    if (found != in_flight_.end() && found->second.node == node) {
      remove(found->second);
      in_flight_.erase(found);
    }
  }

  void lost(std::string_view node) override {
    std::erase_if(in_flight_, [&](auto& entry) {
      if (entry.second.node != node) {
        return false;
      }
      spare_.push_back(std::move(entry.second.increment));
      return true;
    });
    if (const auto found = workers_.find(node); found != workers_.end()) {
      workers_.erase(found);
    }
  }

  void observed_step(std::uint32_t batch, float experts, float step_us) override {
    model_.observe(batch, experts, step_us);
  }

 private:
  struct flight {
    std::string node;
    std::vector<std::int32_t> increment;
  };

  /// p of this request into p_.
  void predict(const routing_request& request, bool usable, bool scored) {
    const auto& background = scored ? pattern_of(similarity_->nearest()) : mean_;
    if (!usable) {
      // Counts as the mean request.
      std::transform(mean_.begin(), mean_.end(), p_.begin(),
                     [](float v) { return std::clamp(v, 1e-4F, 0.98F); });
      return;
    }
    const auto n = static_cast<float>(request.tokens);
    union_kernels::blend(request.signature, n, 0.8F * n / (n + 16.0F), background, p_);
    ++seen_;
    union_kernels::update_mean(request.signature, n,
                               1.0F / static_cast<float>(std::min<std::uint64_t>(seen_ + 1, 256)),
                               mean_);
  }

  std::span<const float> pattern_span(std::uint32_t slot) const {
    return std::span(artifact_->cluster_patterns).subspan(std::size_t{slot} * cells_, cells_);
  }
  const std::vector<float>& pattern_of(std::uint32_t slot) {
    if (artifact_->cluster_patterns.size() < (std::size_t{slot} + 1) * cells_) {
      return mean_;
    }
    const auto pattern = pattern_span(slot);
    background_.assign(pattern.begin(), pattern.end());
    return background_;
  }

  void mark_band(std::span<const decode_candidate> candidates, bool scored, decision& why) {
    entries_.resize(candidates.size());
    const bool banded = scored && name_ == "union-band";
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      entries_[i] = {scored ? similarity_->of(candidates[i].slot) : 0.0F, candidates[i].in_flight,
                     candidates[i].slot, true};
      if (i < why.count) {
        why.entries[i].similarity = entries_[i].similarity;
      }
    }
    if (banded) {
      (void)choose_in_band(entries_, tau_, candidates_min_);
    }
  }

  double cost_of(const decode_candidate& c) {
    const auto& w = worker(c.node);
    const double added = union_kernels::growth(p_, w.free);
    const double n = c.in_flight;
    const auto& [a, b, per_sequence] = model_.now();
    return (a + b * (w.expected + added) + per_sequence * (n + 1)) + n * (b * added + per_sequence);
  }

  worker_union& worker(std::string_view node) {
    const auto found = workers_.find(node);
    if (found != workers_.end()) {
      return found->second;
    }
    // A worker's first request only.
    return workers_
        .emplace(std::string(node), worker_union{std::vector<std::int64_t>(cells_),
                                                 std::vector<float>(cells_, 1.0F), 0})
        .first->second;
  }

  void remove(flight& f) {
    auto& w = worker(f.node);
    w.expected = union_kernels::apply(f.increment, -1, w.sum, w.free);
    spare_.push_back(std::move(f.increment));
  }

  /// Buffers of ended requests serve new ones.
  std::vector<std::int32_t> take_buffer() {
    if (spare_.empty()) {
      return std::vector<std::int32_t>(cells_);
    }
    auto buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }

  std::string name_;
  std::size_t cells_;
  float tau_;
  std::uint32_t candidates_min_;
  std::shared_ptr<const fit::artifact> artifact_;
  std::optional<slot_similarity> similarity_;
  step_time_model model_;
  std::vector<float> mean_;  ///< Running mean of f over requests, initially k / E.
  std::uint64_t seen_ = 0;
  std::vector<float> p_;  ///< Of the request chosen for last.
  std::vector<float> background_;
  std::vector<band_entry> entries_;
  std::map<std::string, worker_union, std::less<>> workers_;
  std::map<attempt_key, flight> in_flight_;
  std::vector<std::vector<std::int32_t>> spare_;
};

}  // namespace

std::unique_ptr<routing_policy> make_union_policy(std::string_view name,
                                                  const policy_options& options) {
  return std::make_unique<union_policy>(name, options);
}

}  // namespace eldr::actors
