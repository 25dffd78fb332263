#pragma once
/// Per request: how often each expert was chosen in prefill and in decode.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fit/trace.hpp"

namespace eldr::fit {

struct trace_counts {
  std::uint32_t requests = 0;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
  std::vector<std::uint16_t> prefill;         ///< [requests][layers][experts]: the signatures.
  std::vector<std::uint16_t> decode;          ///< Likewise: the decode patterns.
  std::vector<std::uint32_t> prefill_tokens;  ///< [requests]
  std::vector<std::uint32_t> decode_tokens;   ///< [requests]
  std::vector<std::string> labels;            ///< [requests]; empty: unknown.
  /// Sums over the prefill tokens, [requests][layers][experts]; empty where the trace has none.
  std::vector<float> gate_probabilities;
  std::vector<float> logits;

  std::size_t cells() const noexcept { return std::size_t{layers} * experts; }
  std::span<const std::uint16_t> prefill_of(std::size_t request) const noexcept {
    return std::span(prefill).subspan(request * cells(), cells());
  }
  std::span<const std::uint16_t> decode_of(std::size_t request) const noexcept {
    return std::span(decode).subspan(request * cells(), cells());
  }
};

/// Counts the requests `which` (indices into source.requests(), counted in this order) and checks
/// every row of theirs: ids below `experts` and distinct within a layer, gate values finite and
/// probabilities not negative. A signature's cells are 16 bits on the wire, so a request has at
/// most 65,535 tokens. Throws fit_error that names request, row and layer.
trace_counts count_trace(const trace& source, std::uint32_t experts,
                         std::span<const std::uint32_t> which, unsigned threads = 0);

/// All requests of the trace.
trace_counts count_trace(const trace& source, std::uint32_t experts, unsigned threads = 0);

}  // namespace eldr::fit
