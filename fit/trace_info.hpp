#pragma once
/// What a trace holds, and whether routing by expert locality can gain anything from it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fit/counts.hpp"
#include "fit/trace.hpp"

namespace eldr::fit {

struct batch_union {
  std::uint32_t batch = 0;
  double same_label = 0;  ///< Mean distinct experts per layer and decode step.
  double mixed = 0;       ///< Likewise, requests drawn from all.
};

struct trace_summary {
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
  std::uint64_t requests = 0;
  std::uint64_t prefill_tokens = 0;
  std::uint64_t decode_tokens = 0;
  std::vector<std::pair<std::string, std::uint32_t>> labels;  ///< In alphabetical order.
  std::vector<double> entropy;  ///< [layers], bits, of the use of experts by all tokens.
  /// Pearson's correlation of prefill and decode counts, mean over requests that have both.
  std::optional<double> correlation;
  std::optional<batch_union> unions;  ///< Nothing when too few requests decode together.
};

/// Checks and summarises the whole trace. `experts` as for count_trace. Batches are drawn by seed.
trace_summary summarise_trace(const trace& source, std::uint32_t experts, std::uint32_t batch = 8,
                              std::uint64_t seed = 1, unsigned threads = 0);

std::string summary_text(const trace_summary& summary);

}  // namespace eldr::fit
