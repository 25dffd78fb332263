#include "fit/counts.hpp"

#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "fit/choices.hpp"
#include "fit/error.hpp"
#include "fit/parallel.hpp"

namespace eldr::fit {
namespace {

constexpr std::uint64_t tokens_max = std::numeric_limits<std::uint16_t>::max();

[[noreturn]] void refuse(const trace_request& request, const std::string& reason) {
  throw fit_error("Request '" + request.id + "' of the trace: " + reason + ".");
}

void count_rows(const trace& source, const trace_request& request, std::uint64_t first_row,
                std::uint64_t rows, choice_checker& checker, std::uint32_t experts,
                std::span<std::uint16_t> cells) {
  const std::uint32_t k = source.experts_per_token();
  std::vector<std::uint16_t> row(std::size_t{source.layers()} * k);
  for (std::uint64_t r = first_row; r < first_row + rows; ++r) {
    source.read_row(r, row);
    for (std::uint32_t layer = 0; layer < source.layers(); ++layer) {
      const auto ids = std::span<const std::uint16_t>(row).subspan(std::size_t{layer} * k, k);
      if (!checker.valid(ids)) {
        refuse(request, "counted from the start of routed_experts.npy, row " + std::to_string(r) +
                            ": " + *find_choice_fault(row, source.layers(), k, checker));
      }
      for (const std::uint16_t id : ids) {
        ++cells[std::size_t{layer} * experts + id];
      }
    }
  }
}

/// Adds a request's gate values to `sums`, [layers][experts]. Values are those of the chosen
/// experts in the order of the ids, or of all experts.
void sum_gate_values(const trace& source, const npy_array& values, const trace_request& request,
                     std::uint32_t experts, bool probabilities, std::span<float> sums) {
  const std::uint32_t k = source.experts_per_token();
  const std::uint64_t width = values.shape()[2];
  std::vector<std::uint16_t> row(std::size_t{source.layers()} * k);
  for (std::uint64_t r = request.first_row; r < request.first_row + request.prefill_rows; ++r) {
    source.read_row(r, row);
    for (std::uint32_t layer = 0; layer < source.layers(); ++layer) {
      for (std::uint64_t i = 0; i < width; ++i) {
        const float value = values.at<float>((r * source.layers() + layer) * width + i);
        if (!std::isfinite(value) || (probabilities && value < 0)) {
          refuse(request, std::string(probabilities ? "gate probability" : "logit") + " of row " +
                              std::to_string(r) + ", layer " + std::to_string(layer) +
                              " is NaN, infinite or negative; record the trace again or remove "
                              "the file");
        }
        const std::uint64_t expert = width == k ? row[std::size_t{layer} * k + i] : i;
        sums[std::size_t{layer} * experts + expert] += value;
      }
    }
  }
}

void check_width(const std::optional<npy_array>& values, const trace& source,
                 std::uint32_t experts) {
  if (values && values->shape()[2] != source.experts_per_token() && values->shape()[2] != experts) {
    throw fit_error("Gate values of the trace have " + std::to_string(values->shape()[2]) +
                    " entries a layer; they must be of the " +
                    std::to_string(source.experts_per_token()) + " chosen experts or of all " +
                    std::to_string(experts) + ".");
  }
}

}  // namespace

trace_counts count_trace(const trace& source, std::uint32_t experts,
                         std::span<const std::uint32_t> which, unsigned threads) {
  if (experts < source.experts_per_token()) {
    throw fit_error("The trace has " + std::to_string(source.experts_per_token()) +
                    " experts per token and the model only " + std::to_string(experts) +
                    " experts; give the model's number of experts.");
  }
  check_width(source.gate_probabilities(), source, experts);
  check_width(source.logits(), source, experts);
  trace_counts counts;
  counts.requests = static_cast<std::uint32_t>(which.size());
  counts.layers = source.layers();
  counts.experts = experts;
  counts.experts_per_token = source.experts_per_token();
  const std::size_t cells = counts.cells();
  counts.prefill.resize(which.size() * cells);
  counts.decode.resize(which.size() * cells);
  counts.prefill_tokens.resize(which.size());
  counts.decode_tokens.resize(which.size());
  counts.labels.resize(which.size());
  counts.gate_probabilities.resize(source.gate_probabilities() ? which.size() * cells : 0);
  counts.logits.resize(source.logits() ? which.size() * cells : 0);
  parallel_for(which.size(), threads, [&](std::size_t i) {
    const trace_request& request = source.requests().at(which[i]);
    if (request.rows > tokens_max) {
      refuse(request,
             "it has more than 65535 tokens, which a signature cannot count; leave it out");
    }
    const std::uint64_t decode_rows = request.rows - request.prefill_rows;
    choice_checker checker(experts);
    count_rows(source, request, request.first_row, request.prefill_rows, checker, experts,
               std::span(counts.prefill).subspan(i * cells, cells));
    count_rows(source, request, request.first_row + request.prefill_rows, decode_rows, checker,
               experts, std::span(counts.decode).subspan(i * cells, cells));
    if (source.gate_probabilities()) {
      sum_gate_values(source, *source.gate_probabilities(), request, experts, true,
                      std::span(counts.gate_probabilities).subspan(i * cells, cells));
    }
    if (source.logits()) {
      sum_gate_values(source, *source.logits(), request, experts, false,
                      std::span(counts.logits).subspan(i * cells, cells));
    }
    counts.prefill_tokens[i] = static_cast<std::uint32_t>(request.prefill_rows);
    counts.decode_tokens[i] = static_cast<std::uint32_t>(decode_rows);
    counts.labels[i] = request.label;
  });
  return counts;
}

trace_counts count_trace(const trace& source, std::uint32_t experts, unsigned threads) {
  std::vector<std::uint32_t> all(source.requests().size());
  std::iota(all.begin(), all.end(), 0u);
  return count_trace(source, experts, all, threads);
}

}  // namespace eldr::fit
