#pragma once
/// "union" and "union-band": the worker whose decode steps grow least, by the expected number of
/// distinct experts. Beyond the published system; needs no centroids to act.

#include <memory>
#include <string_view>

#include "actors/router/routing_policy.hpp"

namespace eldr::actors {

/// A request is taken to choose expert e with p = m f + (1 - m) mean, f its share of prompt tokens
/// that did and m = 0.8 n / (n + 16). Cost of worker q with n_q requests:
/// (a + b (u_q + d_q) + c (n_q + 1)) + n_q (b d_q + c), where u_q is its expected union and d_q
/// what the request adds to it; least wins, ties to the lower load, then the first by name.
std::unique_ptr<routing_policy> make_union_policy(std::string_view name, const policy_options&);

}  // namespace eldr::actors
