/// `eldr policy` and `eldr explain`: how a running cluster routes, and why it placed a request so.

#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.hpp"
#include "cluster/client.hpp"

namespace eldr::apps {
namespace {

struct policy_change {
  std::filesystem::path file;
  std::string name;
  float tau = -1;
  std::uint32_t candidates_min = 0;
  std::string artifact;
};

/// Waits for an answer of type T from a router.
template <class T>
T answer_of(cluster::client& client, const std::string& router) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (std::chrono::steady_clock::now() < deadline) {
    auto event = client.next(std::chrono::milliseconds(100));
    if (event && std::holds_alternative<T>(*event)) {
      return std::get<T>(std::move(*event));
    }
    if (event && std::holds_alternative<cluster::node_lost>(*event)) {
      throw std::runtime_error("the session with '" + router +
                               "' ended: " + std::get<cluster::node_lost>(*event).why);
    }
  }
  throw std::runtime_error("router '" + router + "' did not answer in time");
}

/// Asks all routers for a change (or none, to show what is in force).
int change_policy(const policy_change& change) {
  const auto m = cluster::load_manifest(change.file);
  cluster::client client(m);
  const auto artifact =
      change.artifact.empty() ? std::string() : std::filesystem::absolute(change.artifact).string();
  for (const auto* router : m.with_role(cluster::node_role::router)) {
    client.attach(*router);
    client.set_policy(router->name, change.name, change.tau, change.candidates_min, artifact);
    const auto now = answer_of<cluster::policy_state>(client, router->name);
    if (!now.error.empty()) {
      throw std::runtime_error(
          fmt::format("{} still routes by {}: {}", router->name, now.policy, now.error));
    }
    std::cout << fmt::format("{} routes by {} (tau {:.3g}, at least {} candidates{})\n",
                             router->name, now.policy, now.tau, now.candidates_min,
                             now.artifact.empty() ? "" : "; " + now.artifact);
  }
  return 0;
}

void print_placement(const cluster::placement_explained& p) {
  std::cout << fmt::format(
      "request {} (attempt {}, {} tokens{}) went to {} {} ms ago, by {}: {}; decided in {:.1f} "
      "us\n",
      p.request, p.attempt, p.tokens, p.label.empty() ? "" : ", " + p.label, p.chosen, p.age_ms,
      p.policy, p.why, static_cast<double>(p.decision_ns) / 1e3);
  std::cout << fmt::format("  {:<12} {:>5} {:>6} {:>11} {:>10}  {}\n", "node", "slot", "load",
                           "similarity", "cost", "");
  for (const auto& c : p.candidates) {
    std::cout << fmt::format("  {:<12} {:>5} {:>6} {:>11.4f} {:>10.1f}  {}{}\n", c.node, c.slot,
                             c.load, c.similarity, c.cost, c.in_band ? "in band" : "",
                             c.node == p.chosen ? ", chosen" : "");
  }
}

void print_json(const cluster::placement_explained& p) {
  nlohmann::ordered_json out{
      {"request", p.request}, {"attempt", p.attempt},
      {"policy", p.policy},   {"why", p.why},
      {"chosen", p.chosen},   {"tokens", p.tokens},
      {"label", p.label},     {"decision_us", static_cast<double>(p.decision_ns) / 1e3}};
  for (const auto& c : p.candidates) {
    out["candidates"].push_back({{"node", c.node},
                                 {"slot", c.slot},
                                 {"load", c.load},
                                 {"similarity", c.similarity},
                                 {"cost", c.cost},
                                 {"in_band", c.in_band}});
  }
  std::cout << out.dump(2) << '\n';
}

int explain(const std::filesystem::path& file, std::uint64_t request, bool json) {
  const auto m = cluster::load_manifest(file);
  cluster::client client(m);
  for (const auto* router : m.with_role(cluster::node_role::router)) {
    client.attach(*router);
    client.explain(router->name, request);
    const auto placement = answer_of<cluster::placement_explained>(client, router->name);
    if (placement.found) {
      json ? print_json(placement) : print_placement(placement);
      return 0;
    }
  }
  throw std::runtime_error(request == 0 ? std::string("no request has been placed yet")
                                        : fmt::format("no router remembers request {}", request));
}

}  // namespace

void add_policy(CLI::App& app, command& chosen) {
  auto change = std::make_shared<policy_change>();
  CLI::App* policy = app.add_subcommand("policy", "Show or change how a running cluster routes");
  policy->require_subcommand(1);
  CLI::App* show = policy->add_subcommand("show", "The policy in force at each router");
  add_manifest_option(*show, change->file);
  show->callback([change, &chosen] { chosen = [change] { return change_policy(*change); }; });
  CLI::App* set =
      policy->add_subcommand("set", "Change the policy; requests that run are not disturbed");
  add_manifest_option(*set, change->file);
  set->add_option(
         "policy", change->name,
         "rr, random, jsq, p2c, eldr, eldr-top1, eldr-vanilla, domain, union or union-band")
      ->required();
  set->add_option("--tau", change->tau, "Width of the band")->check(CLI::Range(0.0, 2.0));
  set->add_option("--candidates-min", change->candidates_min,
                  "Widen a narrower band to so many workers")
      ->check(CLI::Range(1, 1024));
  set->add_option("--artifact", change->artifact,
                  "Routing artifact to load as well; read by the router's process");
  set->callback([change, &chosen] { chosen = [change] { return change_policy(*change); }; });
}

void add_explain(CLI::App& app, command& chosen) {
  auto file = std::make_shared<std::filesystem::path>();
  auto request = std::make_shared<std::uint64_t>(0);
  auto json = std::make_shared<bool>(false);
  CLI::App* explained =
      app.add_subcommand("explain", "Show why a request was placed on its decode worker");
  add_manifest_option(*explained, *file);
  explained->add_option("request", *request, "The request's number; the latest if not given");
  explained->add_flag("--json", *json, "For programs");
  explained->callback([=, &chosen] { chosen = [=] { return explain(*file, *request, *json); }; });
}

}  // namespace eldr::apps
