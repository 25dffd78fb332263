#pragma once
/// One seeded run of a simulated cluster under faults, and what must hold after it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cluster/simulation/sim_cluster.hpp"

namespace eldr::cluster {

struct fault_run_options {
  std::uint64_t seed = 1;
  std::uint32_t requests_min = 8;
  std::uint32_t requests_max = 24;
  std::uint32_t faults_min = 1;
  std::uint32_t faults_max = 5;
  /// None: the hash model of gpu/hash_runner.hpp.
  std::shared_ptr<gpu::model_runner> model;
};

struct fault_run_report {
  std::vector<std::string> plan;        ///< Faults and cancellations, one line each.
  std::vector<std::string> violations;  ///< Empty: every invariant held.
  std::uint32_t requests = 0;
  std::uint32_t faults = 0;
  std::uint32_t completed = 0;  ///< Ended with exactly the undisturbed tokens.
  std::uint32_t refused = 0;    ///< Ended in an explicit error.
  std::uint32_t cancelled = 0;
  std::uint32_t retried = 0;           ///< Completed after more than one attempt.
  std::uint32_t handoffs_checked = 0;  ///< Signatures compared with a recount.
  std::uint64_t events = 0;
  std::uint64_t history = 0;  ///< Hash over all deliveries.
};

/// Draws a cluster's shape, a workload and a fault plan from the seed, runs it until everything is
/// at rest and checks the invariants of docs/simulation.md. Equal options give equal reports.
fault_run_report run_faults(const fault_run_options&);

}  // namespace eldr::cluster
