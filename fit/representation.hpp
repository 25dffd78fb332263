#pragma once
/// Representations of a signature: what is made of the counts before signatures are compared.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fit/counts.hpp"

namespace eldr::fit {

/// The first four can be computed from what travels on the wire and may enter an artifact; the last
/// two are only reported, where a trace has them. The numbers are part of the artifact's format.
enum class representation : std::uint8_t {
  count = 0,
  count_idf = 1,
  sqrt_count = 2,
  binary = 3,
  gate_probability = 4,
  gate_logit = 5,
};
inline constexpr std::uint8_t representations = 6;
inline constexpr std::uint8_t routable_representations = 4;

/// "count", "count*idf", "sqrt(count)", "binary", "gate probability", "gate logit".
std::string_view to_string(representation kind) noexcept;

/// Whether the counts hold what `kind` needs.
bool available(const trace_counts& counts, representation kind) noexcept;

/// Weights [layers][experts]: ln((|C| + 1) / (df + 1)), df = requests of C with a count above 0.
std::vector<float> inverse_document_frequency(const trace_counts& counts,
                                              std::span<const std::uint32_t> calibration);

/// A vector per request and layer; layer by layer, because layers are chosen one by one.
struct layer_features {
  std::uint32_t layers = 0;
  std::uint32_t requests = 0;
  std::uint32_t experts = 0;
  std::vector<float> values;  ///< [layers][requests][experts]

  const float* layer(std::size_t layer) const noexcept {
    return values.data() + layer * requests * experts;
  }
  std::span<const float> row(std::size_t layer, std::size_t request) const noexcept {
    return std::span(values).subspan((layer * requests + request) * experts, experts);
  }
};

/// The signatures of the requests `which`, not normalised. `idf` is used by count_idf only.
layer_features signature_features(const trace_counts& counts, representation kind,
                                  std::span<const float> idf, std::span<const std::uint32_t> which,
                                  unsigned threads = 0);

/// Their decode patterns (counts; the scale does not matter to cosine distance).
layer_features decode_features(const trace_counts& counts, std::span<const std::uint32_t> which,
                               unsigned threads = 0);

/// Squared L2 norms, [layers][requests].
std::vector<float> squared_norms(const layer_features& features);

}  // namespace eldr::fit
