#include "actors/router/policy_desk.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "actors/common/wire.hpp"

namespace eldr::actors {

namespace {
policy_options with_settings(policy_options o, const settings& s) {
  o.seed = s.policy_seed;
  o.tau = s.tau;
  o.union_tau = s.union_tau;
  o.candidates_min = s.candidates_min;
  return o;
}

std::string describe_artifact(const fit::artifact& a, const std::string& source) {
  return source + ": " + std::to_string(a.slots) + " slots, " + std::to_string(a.mask.size()) +
         " of " + std::to_string(a.layers) + " layers";
}
}  // namespace

policy_desk::policy_desk(const settings& s, router_spec spec)
    : spec_(std::move(spec)), artifact_source_(spec_.artifact_source), log_(s.explain_max) {
  spec_.policy = with_settings(spec_.policy, s);
  policy_ = make_policy(s.policy, spec_.policy);
}

const worker& policy_desk::choose(const context& ctx, const routing_request& request,
                                  const std::vector<const worker*>& workers) {
  candidates_.clear();
  for (const auto* w : workers) {
    candidates_.push_back({w->node, w->slot, w->depth(), w->blocks_free});
  }
  auto& entry = log_.next();
  const auto before = ctx.now_ns();
  const auto chosen = policy_->choose(request, candidates_, entry.what);
  entry.at_ns = ctx.now_ns();
  entry.decision_ns = entry.at_ns - before;
  entry.key = request.key;
  entry.policy = policy_->name();
  entry.tokens = request.tokens;
  entry.label = request.label;
  entry.nodes.resize(entry.what.count);
  for (std::uint32_t i = 0; i < entry.what.count; ++i) {
    entry.nodes[i] = candidates_[i].node;
  }
  policy_->placed(request.key, candidates_[chosen].node);
  const auto& what = entry.what;
  signatures_missing_ += what.why == decision::ground::no_signature ? 1 : 0;
  signatures_zero_ += what.why == decision::ground::zero_norm ? 1 : 0;
  bands_widened_ += what.why == decision::ground::widened ? 1 : 0;
  if (what.why == decision::ground::band || what.why == decision::ground::widened) {
    const bool nearest =
        std::none_of(what.entries.begin(), what.entries.begin() + what.count, [&](const auto& e) {
          return chosen < what.count && e.similarity > what.entries[chosen].similarity;
        });
    (nearest ? band_hits_ : band_spills_) += 1;
  }
  return *workers[chosen];
}

void policy_desk::change(wire::SetPolicy::Reader in, wire::PolicySet::Builder out) {
  out.setTicket(in.getTicket());
  auto options = spec_.policy;
  auto source = artifact_source_;
  const auto path = read(in.getArtifactPath());
  const auto name =
      in.getPolicy().size() == 0 ? std::string(policy_->name()) : read(in.getPolicy());
  try {
    // Rare and asked for by a person: reading a file here holds decisions up for a few ms.
    if (!path.empty()) {
      if (!spec_.load_artifact) {
        throw std::invalid_argument("this router cannot load artifacts");
      }
      options.artifact = spec_.load_artifact(path);
      source = path;
    }
    if (in.getTau() >= 0) {
      options.tau = in.getTau();
      options.union_tau = in.getTau();
    }
    if (in.getCandidatesMin() > 0) {
      options.candidates_min = in.getCandidatesMin();
    }
    policy_ = make_policy(name, options);  // Swapped in one step: requests see the old or the new.
    spec_.policy = options;
    artifact_source_ = source;
    spdlog::info("routing by {} from now on (tau {})", name, options.tau);
  } catch (const std::exception& e) {
    out.setError(e.what());
  }
  describe(out);
}

void policy_desk::describe(wire::PolicySet::Builder out) const {
  out.setPolicy(std::string(policy_->name()));
  out.setTau(policy_->name() == "union-band" ? spec_.policy.union_tau : spec_.policy.tau);
  out.setCandidatesMin(spec_.policy.candidates_min);
  out.setArtifact(spec_.policy.artifact
                      ? describe_artifact(*spec_.policy.artifact, artifact_source_)
                      : std::string());
}

void policy_desk::explain(const context& ctx, wire::Explain::Reader in,
                          wire::Explained::Builder out) const {
  out.setTicket(in.getTicket());
  const auto* entry = log_.find(in.getCounter());
  out.setFound(entry != nullptr);
  if (entry == nullptr) {
    return;
  }
  write(out.initAttempt(), entry->key);
  out.setPolicy(entry->policy);
  out.setWhy(std::string(to_string(entry->what.why)));
  out.setDecisionNs(static_cast<std::uint64_t>(entry->decision_ns));
  out.setTokens(entry->tokens);
  out.setLabel(entry->label);
  out.setAgeMs(static_cast<std::uint64_t>((ctx.now_ns() - entry->at_ns) / 1'000'000));
  if (entry->what.chosen < entry->nodes.size()) {
    out.setChosen(entry->nodes[entry->what.chosen]);
  }
  auto candidates = out.initCandidates(entry->what.count);
  for (std::uint32_t i = 0; i < entry->what.count; ++i) {
    const auto& e = entry->what.entries[i];
    candidates[i].setNode(entry->nodes[i]);
    candidates[i].setSlot(e.slot);
    candidates[i].setLoad(e.load);
    candidates[i].setSimilarity(e.similarity);
    candidates[i].setCost(e.cost);
    candidates[i].setInBand(e.in_band);
  }
}

named_counts policy_desk::counts() const {
  return {{"signatures_missing_total", signatures_missing_},
          {"signatures_zero_norm_total", signatures_zero_},
          {"bands_widened_total", bands_widened_},
          {"band_hits_total", band_hits_},
          {"band_spills_total", band_spills_}};
}

}  // namespace eldr::actors
