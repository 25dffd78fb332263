/// `eldr bench router`: how many requests a second the router places, without a network.

#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "apps/bench_commands.hpp"
#include "apps/bench_report.hpp"
#include "apps/bench_router_rig.hpp"

namespace eldr::apps {
namespace {

using std::chrono::steady_clock;

struct router_options : bench_options {
  std::vector<std::string> policies;
  std::vector<std::uint32_t> workers{4, 40};
  std::uint32_t layers = 48;
  std::uint32_t experts = 128;
  std::size_t batches = 200;
};

/// Nanoseconds of the policy's choice alone.
double choose_ns(const router_options& o, const std::string& name, std::uint32_t workers) {
  const auto policy =
      actors::make_policy(name, bench_policy_options({o.layers, o.experts, workers}));
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < workers; ++i) {
    names.push_back(fmt::format("decode-{}", i + 1));
  }
  std::vector<actors::decode_candidate> candidates;
  for (std::uint32_t i = 0; i < workers; ++i) {
    candidates.push_back({names[i], static_cast<std::int32_t>(i), i % 5, 1024});
  }
  const std::vector<std::byte> signature(std::size_t{o.layers} * o.experts * 2, std::byte{1});
  actors::decision why;
  std::vector<double> ns;
  for (std::size_t batch = 0; batch < o.batches; ++batch) {
    const auto begin = steady_clock::now();
    for (std::uint32_t i = 0; i < router_rig::batch_size; ++i) {
      const actors::routing_request request{
          {{1, i}, 1}, signature, router_rig::prompt_tokens, i % 2 == 0 ? "a" : "b"};
      // Each choice changes what the next one sees: none can be left out.
      candidates[policy->choose(request, candidates, why)].in_flight = i % 7;
    }
    const std::chrono::duration<double, std::nano> time = steady_clock::now() - begin;
    ns.push_back(time.count() / router_rig::batch_size);
  }
  return median(std::move(ns));
}

void measure(const router_options& o, const std::string& policy, std::uint32_t workers,
             bench_report& report) {
  show_progress(fmt::format("{}, {} decode workers ...", policy, workers));
  router_rig rig({o.layers, o.experts, workers}, policy);
  std::vector<double> submits;
  std::vector<double> handoffs;
  std::vector<double> reports;
  std::vector<double> floors;
  rig.run_batch();  // Warms up.
  for (std::size_t i = 0; i < o.batches; ++i) {
    const auto c = rig.run_batch();
    submits.push_back(c.submit_us);
    handoffs.push_back(c.handoff_us);
    reports.push_back(c.report_us);
    floors.push_back(c.floor_us);
  }
  const double handoff = median(handoffs);
  const double request = median(submits) + handoff + median(reports);
  const double floor = median(floors);
  report.add({policy, static_cast<double>(workers), choose_ns(o, policy, workers), median(submits),
              handoff, median(reports), floor, handoff / floor, 1e6 / handoff, 1e6 / request});
}

int run(router_options o) {
  if (o.quick) {
    o.batches = 5;
  }
  if (o.policies.empty()) {
    o.policies.assign(actors::policy_names().begin(), actors::policy_names().end());
  }
  bench_report report("router", o,
                      {{"policy", "policy"},
                       {"workers", "workers", 0},
                       {"choose_ns", "choose ns", 0},
                       {"submit_us", "submit us", 2},
                       {"handoff_us", "handoff us", 2},
                       {"report_us", "report us", 2},
                       {"floor_us", "floor us", 2},
                       {"ratio", "of floor", 1},
                       {"decisions_per_s", "decisions/s", 0},
                       {"requests_per_s", "requests/s", 0}});
  for (const auto& policy : o.policies) {
    for (const auto workers : o.workers) {
      measure(o, policy, workers, report);
    }
  }
  report.note(fmt::format(
      "Medians over {} batches of {} requests on one thread, signatures of {} x {}. A decision is "
      "a handoff placed; the floor writes its two messages without choosing. A request is a "
      "submit, a handoff and its share of the workers' reports.",
      o.batches, router_rig::batch_size, o.layers, o.experts));
  report.print();
  return 0;
}

}  // namespace

void add_bench_router(CLI::App& bench, command& chosen) {
  auto o = std::make_shared<router_options>();
  CLI::App* app = bench.add_subcommand(
      "router", "How many requests a second the router places, without a network");
  add_bench_options(*app, *o);
  app->add_option("--policy", o->policies, "Routing policies, with commas; all if not given")
      ->delimiter(',');
  app->add_option("--workers", o->workers, "Decode workers; several with commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--layers", o->layers, "Of the signature")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app->add_option("--experts", o->experts, "Of the signature, per layer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--batches", o->batches, "Batches of 64 requests")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace eldr::apps
