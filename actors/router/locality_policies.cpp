#include "actors/router/locality_policies.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "actors/router/band.hpp"
#include "actors/router/load_policies.hpp"
#include "actors/router/slot_similarity.hpp"

namespace eldr::actors {

namespace {

class band_policy final : public routing_policy {
 public:
  band_policy(std::string_view name, const policy_options& o)
      : name_(name),
        tau_(name == "eldr-top1" ? 0 : o.tau),
        candidates_min_(o.candidates_min),
        similarity_(
            *o.artifact,
            name == "eldr-vanilla" ? fit::centroid_set::vanilla : fit::centroid_set::balanced,
            o.decode_nodes) {}

  std::string_view name() const noexcept override { return name_; }

  std::size_t choose(const routing_request& request, std::span<const decode_candidate> candidates,
                     decision& why) override {
    note_loads(candidates, why);
    bool zero_norm = false;
    const bool scored = similarity_.score(request.signature, zero_norm);
    entries_.resize(candidates.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      // Without a direction all are as near: the band then holds everybody.
      entries_[i] = {scored ? similarity_.of(candidates[i].slot) : 0.0F, candidates[i].in_flight,
                     candidates[i].slot, false};
    }
    const auto choice = choose_in_band(entries_, scored ? tau_ : 2.0F, candidates_min_);
    for (std::uint32_t i = 0; i < why.count; ++i) {
      why.entries[i].similarity = entries_[i].similarity;
      why.entries[i].in_band = entries_[i].in_band;
    }
    why.why = zero_norm        ? decision::ground::zero_norm
              : !scored        ? decision::ground::no_signature
              : choice.widened ? decision::ground::widened
                               : decision::ground::band;
    why.chosen = static_cast<std::uint32_t>(choice.chosen);
    return choice.chosen;
  }

 private:
  std::string name_;
  float tau_;
  std::uint32_t candidates_min_;
  slot_similarity similarity_;
  std::vector<band_entry> entries_;  ///< Kept: no allocation once it has grown.
};

class domain_policy final : public routing_policy {
 public:
  explicit domain_policy(const policy_options& o)
      : shortest_(make_shortest_queue(o.seed)), workers_(std::max(o.decode_nodes, 1u)) {
    double total = 0;
    for (const auto& l : o.artifact->labels) {
      total += l.label.empty() ? 0 : l.requests;
    }
    // Laid end to end along the workers, each label covers the part that its share is worth.
    double begin = 0;
    for (const auto& l : o.artifact->labels) {
      if (l.label.empty() || total <= 0) {
        continue;
      }
      const auto end = begin + l.requests / total * workers_;
      constexpr double slack = 1e-9;
      const auto first = std::min(static_cast<std::uint32_t>(begin + slack), workers_ - 1);
      const auto last =
          std::min(static_cast<std::uint32_t>(std::max(end - slack, begin)), workers_ - 1);
      ranges_[l.label] = {first, std::max(first, last)};
      begin = end;
    }
  }

  std::string_view name() const noexcept override { return "domain"; }

  std::size_t choose(const routing_request& request, std::span<const decode_candidate> candidates,
                     decision& why) override {
    const auto range = ranges_.find(request.label);
    std::size_t best = candidates.size();
    note_loads(candidates, why);
    for (std::size_t i = 0; range != ranges_.end() && i < candidates.size(); ++i) {
      const auto slot = candidates[i].slot;
      const bool inside = slot >= 0 && static_cast<std::uint32_t>(slot) >= range->second.first &&
                          static_cast<std::uint32_t>(slot) <= range->second.second;
      if (i < why.count) {
        why.entries[i].in_band = inside;
      }
      if (inside &&
          (best == candidates.size() || candidates[i].in_flight < candidates[best].in_flight)) {
        best = i;
      }
    }
    if (best == candidates.size()) {  // An unknown label, or all of its workers are away.
      return shortest_->choose(request, candidates, why);
    }
    why.why = decision::ground::label;
    why.chosen = static_cast<std::uint32_t>(best);
    return best;
  }

 private:
  std::unique_ptr<routing_policy> shortest_;
  std::uint32_t workers_;
  std::map<std::string, std::pair<std::uint32_t, std::uint32_t>, std::less<>> ranges_;
};

}  // namespace

std::unique_ptr<routing_policy> make_band_policy(std::string_view name,
                                                 const policy_options& options) {
  return std::make_unique<band_policy>(name, options);
}

std::unique_ptr<routing_policy> make_domain_policy(const policy_options& options) {
  return std::make_unique<domain_policy>(options);
}

}  // namespace eldr::actors
