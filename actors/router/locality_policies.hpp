#pragma once
/// Policies of the published system: a band around the nearest centroid, and routing by label.

#include <memory>
#include <string_view>

#include "actors/router/routing_policy.hpp"

namespace eldr::actors {

/// "eldr" (balanced centroids, tau), "eldr-top1" (tau = 0), "eldr-vanilla" (centroids of plain
/// K-means). Requests without a usable signature go by load, ties to the lower slot.
std::unique_ptr<routing_policy> make_band_policy(std::string_view name, const policy_options&);

/// Labels packed onto workers by their calibration share; least loaded within; unknown labels join
/// the shortest queue.
std::unique_ptr<routing_policy> make_domain_policy(const policy_options&);

}  // namespace eldr::actors
