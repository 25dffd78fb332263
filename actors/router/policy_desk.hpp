#pragma once
/// The policy in force, how it is changed while requests run, and what it decided.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/common/core.hpp"
#include "actors/common/settings.hpp"
#include "actors/router/decision_log.hpp"
#include "actors/router/routing_policy.hpp"
#include "actors/router/worker_table.hpp"

namespace eldr::actors {

/// Reads a routing artifact and checks that it fits the model. Throws std::exception with one
/// sentence.
using artifact_loader =
    std::function<std::shared_ptr<const fit::artifact>(const std::string& path)>;

/// What a router needs to know besides the settings.
struct router_spec {
  std::vector<std::string> expected;  ///< The manifest's workers.
  policy_options policy;              ///< Geometry, decode nodes, the artifact that it starts with.
  std::string artifact_source;        ///< Where that came from, for people.
  artifact_loader load_artifact;      ///< None: artifacts cannot be loaded.
};

class policy_desk {
 public:
  /// Throws std::invalid_argument as make_policy does.
  policy_desk(const settings&, router_spec spec);

  /// Chooses one of `workers` (not empty, by name) and remembers why.
  const worker& choose(const context&, const routing_request&,
                       const std::vector<const worker*>& workers);

  routing_policy& policy() noexcept { return *policy_; }
  /// SetPolicy: all or nothing. Fills in the answer.
  void change(wire::SetPolicy::Reader, wire::PolicySet::Builder);
  void explain(const context&, wire::Explain::Reader, wire::Explained::Builder) const;
  /// Counted for people.
  named_counts counts() const;

 private:
  void describe(wire::PolicySet::Builder) const;

  router_spec spec_;
  std::string artifact_source_;
  std::unique_ptr<routing_policy> policy_;
  decision_log log_;
  std::vector<decode_candidate> candidates_;  ///< Kept: no allocation once it has grown.
  std::int64_t signatures_missing_ = 0;
  std::int64_t signatures_zero_ = 0;
  std::int64_t bands_widened_ = 0;
  std::int64_t band_hits_ = 0;    ///< The chosen worker was also the most similar.
  std::int64_t band_spills_ = 0;  ///< It was not.
};

}  // namespace eldr::actors
