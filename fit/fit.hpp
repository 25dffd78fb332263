#pragma once
/// The offline fit: from a trace to the artifact that a router routes by.

#include <cstdint>
#include <string>

#include "fit/artifact.hpp"
#include "fit/counts.hpp"
#include "fit/trace.hpp"

namespace eldr::fit {

struct fit_options {
  std::uint32_t slots = 16;        ///< K: clusters, one decode worker each.
  std::uint64_t seed = 1;          ///< Of splits, pair samples and K-means.
  std::uint32_t experts = 0;       ///< Per layer; 0: what the trace says, else highest id + 1.
  std::uint32_t block_tokens = 0;  ///< KV block size; 0: what the trace says, else 16.
  std::string model = {};          ///< Empty: what the trace says.
  std::uint32_t ep_ranks = 1;      ///< Expert-parallel ranks of a decode worker.
  std::uint32_t batch = 16;        ///< Decode batch of placement and of expected unions.

  double validation_share = 0.2;   ///< Of the requests; at least 3 requests.
  double test_share = 0.2;         ///< Likewise. The rest trains.
  std::size_t pairs_max = 30'000;  ///< Per split; a seeded sample beyond. At most 1,000,000.
  double mask_gain_min = 0.005;    ///< Validation rho that a mask must gain to be kept.
  double zero_norm_share_max = 0.01;
  std::uint32_t kmeans_seeds = 5;
  std::uint32_t kmeans_iterations_max = 50;
  std::uint32_t requests_max = 8'192;  ///< A seeded sample beyond: clustering needs N^2 memory.
  unsigned threads = 0;  ///< 0: as many as the machine has. Does not change the result.
};

inline constexpr std::uint32_t fit_requests_min = 10;

/// Fits the artifact. Test requests take part in nothing but the report; the others are the
/// calibration requests, on which document frequencies, clusters and decode patterns rest. The same
/// trace and options give the same artifact, byte for byte. Throws fit_error.
artifact fit_routing(const trace& source, const fit_options& options);

/// The same from counts in memory; the provenance of the trace stays empty.
artifact fit_routing(const trace_counts& counts, const fit_options& options);

}  // namespace eldr::fit
