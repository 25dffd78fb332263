#include "actors/router/routing_policy.hpp"

#include <algorithm>
#include <stdexcept>

#include "actors/router/load_policies.hpp"
#include "actors/router/locality_policies.hpp"
#include "actors/router/union_policy.hpp"

namespace eldr::actors {

namespace {
constexpr std::array<std::string_view, 10> names{"rr",    "random",    "jsq",          "p2c",
                                                 "eldr",  "eldr-top1", "eldr-vanilla", "domain",
                                                 "union", "union-band"};
}  // namespace

std::string_view to_string(decision::ground why) noexcept {
  switch (why) {
    case decision::ground::load:
      return "load";
    case decision::ground::band:
      return "band";
    case decision::ground::widened:
      return "widened band";
    case decision::ground::cost:
      return "cost";
    case decision::ground::label:
      return "label";
    case decision::ground::no_signature:
      return "no signature, by load";
    case decision::ground::zero_norm:
      return "signature without direction, by load";
  }
  return "unknown";
}

std::span<const std::string_view> policy_names() {
  return names;
}

bool needs_artifact(std::string_view name) {
  return name == "eldr" || name == "eldr-top1" || name == "eldr-vanilla" || name == "domain" ||
         name == "union-band";
}

std::unique_ptr<routing_policy> make_policy(std::string_view name, const policy_options& options) {
  if (needs_artifact(name) && !options.artifact) {
    throw std::invalid_argument(
        "policy '" + std::string(name) +
        "' needs a routing artifact; fit one with 'eldr fit' and name it in policy.artifact");
  }
  if (name == "rr") {
    return make_round_robin();
  }
  if (name == "random") {
    return make_uniform_random(options.seed);
  }
  if (name == "jsq") {
    return make_shortest_queue(options.seed);
  }
  if (name == "p2c") {
    return make_power_of_two(options.seed);
  }
  if (name == "eldr" || name == "eldr-top1" || name == "eldr-vanilla") {
    return make_band_policy(name, options);
  }
  if (name == "domain") {
    return make_domain_policy(options);
  }
  if (name == "union" || name == "union-band") {
    return make_union_policy(name, options);
  }
  std::string known;
  for (auto n : names) {
    known += (known.empty() ? "" : ", ") + std::string(n);
  }
  throw std::invalid_argument("unknown routing policy '" + std::string(name) + "'; known are " +
                              known);
}

}  // namespace eldr::actors
