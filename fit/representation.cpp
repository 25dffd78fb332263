#include "fit/representation.hpp"

#include <Eigen/Core>
#include <cmath>

#include "fit/parallel.hpp"

namespace eldr::fit {
namespace {

/// Gathers the requests `which` layer by layer; cell(index) gives a value, its index being into
/// [requests][layers][experts] and, for weights, into [layers][experts].
template <typename Cell>
layer_features gather(const trace_counts& counts, std::span<const std::uint32_t> which,
                      unsigned threads, Cell cell) {
  layer_features features;
  features.layers = counts.layers;
  features.requests = static_cast<std::uint32_t>(which.size());
  features.experts = counts.experts;
  features.values.resize(which.size() * counts.cells());
  parallel_for(counts.layers, threads, [&](std::size_t layer) {
    float* out = features.values.data() + layer * which.size() * counts.experts;
    for (const std::uint32_t request : which) {
      const std::size_t first = request * counts.cells() + layer * counts.experts;
      for (std::size_t e = 0; e < counts.experts; ++e) {
        *out++ = cell(first + e, layer * counts.experts + e);
      }
    }
  });
  return features;
}

}  // namespace

std::string_view to_string(representation kind) noexcept {
  switch (kind) {
    case representation::count:
      return "count";
    case representation::count_idf:
      return "count*idf";
    case representation::sqrt_count:
      return "sqrt(count)";
    case representation::binary:
      return "binary";
    case representation::gate_probability:
      return "gate probability";
    case representation::gate_logit:
      return "gate logit";
  }
  return "unknown";
}

bool available(const trace_counts& counts, representation kind) noexcept {
  switch (kind) {
    case representation::gate_probability:
      return !counts.gate_probabilities.empty();
    case representation::gate_logit:
      return !counts.logits.empty();
    default:
      return true;
  }
}

std::vector<float> inverse_document_frequency(const trace_counts& counts,
                                              std::span<const std::uint32_t> calibration) {
  std::vector<std::uint32_t> frequency(counts.cells(), 0);
  for (const std::uint32_t request : calibration) {
    const auto cells = counts.prefill_of(request);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      frequency[i] += cells[i] > 0;
    }
  }
  std::vector<float> weights(counts.cells());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(
        std::log((static_cast<double>(calibration.size()) + 1) / (frequency[i] + 1.0)));
  }
  return weights;
}

layer_features signature_features(const trace_counts& counts, representation kind,
                                  std::span<const float> idf, std::span<const std::uint32_t> which,
                                  unsigned threads) {
  const auto& prefill = counts.prefill;
  switch (kind) {
    case representation::count:
      break;
    case representation::count_idf:
      return gather(counts, which, threads, [&prefill, idf](std::size_t i, std::size_t cell) {
        return static_cast<float>(prefill[i]) * idf[cell];
      });
    case representation::sqrt_count:
      return gather(counts, which, threads, [&prefill](std::size_t i, std::size_t) {
        return std::sqrt(static_cast<float>(prefill[i]));
      });
    case representation::binary:
      return gather(counts, which, threads, [&prefill](std::size_t i, std::size_t) {
        return prefill[i] > 0 ? 1.0f : 0.0f;
      });
    case representation::gate_probability:
      return gather(counts, which, threads,
                    [&counts](std::size_t i, std::size_t) { return counts.gate_probabilities[i]; });
    case representation::gate_logit:
      return gather(counts, which, threads,
                    [&counts](std::size_t i, std::size_t) { return counts.logits[i]; });
  }
  return gather(counts, which, threads,
                [&prefill](std::size_t i, std::size_t) { return static_cast<float>(prefill[i]); });
}

layer_features decode_features(const trace_counts& counts, std::span<const std::uint32_t> which,
                               unsigned threads) {
  return gather(counts, which, threads, [&counts](std::size_t i, std::size_t) {
    return static_cast<float>(counts.decode[i]);
  });
}

std::vector<float> squared_norms(const layer_features& features) {
  const Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>
      rows(features.values.data(), std::int64_t{features.layers} * features.requests,
           features.experts);
  std::vector<float> norms(static_cast<std::size_t>(rows.rows()));
  Eigen::Map<Eigen::VectorXf>(norms.data(), rows.rows()) = rows.rowwise().squaredNorm();
  return norms;
}

}  // namespace eldr::fit
