#pragma once
/// A trace: which experts every token of recorded requests chose. On disk a folder with
///   routed_experts.npy      uint8|uint16 [rows][layers][k], one row per token
///   requests.jsonl          one object per request: id, first_row, rows, prefill_rows, label?
/// and beside it, where the recording engine has them,
///   gate_probabilities.npy  float32 [rows][layers][k or experts]
///   logits.npy              float32, likewise, before the gate's normalisation
///   trace.json              {"experts", "block_tokens", "model", "source"}, each optional
/// docs/fit.md describes the format for users.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "fit/npy.hpp"

namespace eldr::fit {

struct trace_request {
  std::string id;
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;          ///< Prefill and decode.
  std::uint64_t prefill_rows = 0;  ///< The first of them.
  std::string label;               ///< Empty: unknown.
};

/// What the arrays themselves do not tell. 0 or empty: unknown.
struct trace_properties {
  std::uint32_t experts = 0;
  std::uint32_t block_tokens = 0;
  std::string model = {};
  std::string source = {};
};

/// Read-only view of a trace folder. The arrays are mapped, not loaded.
class trace {
 public:
  /// Throws fit_error when a file is missing or malformed, when shapes do not agree, and when the
  /// rows of a request lie outside the array or overlap those of another. Ids of experts are
  /// checked when they are counted (counts.hpp).
  static trace open(const std::filesystem::path& folder);

  const std::vector<trace_request>& requests() const noexcept { return requests_; }
  const trace_properties& properties() const noexcept { return properties_; }
  std::uint64_t rows() const noexcept { return choices_.shape()[0]; }
  std::uint32_t layers() const noexcept { return layers_; }
  std::uint32_t experts_per_token() const noexcept { return experts_per_token_; }

  /// Expert ids of `row`, [layers][k], into `out`.
  void read_row(std::uint64_t row, std::span<std::uint16_t> out) const noexcept;
  /// Highest expert id plus one.
  std::uint32_t experts_seen() const;
  /// XXH3 of the requests and of the expert ids.
  std::uint64_t digest() const;

  /// float32 [rows][layers][k or experts], where the trace has them.
  const std::optional<npy_array>& gate_probabilities() const noexcept { return probabilities_; }
  const std::optional<npy_array>& logits() const noexcept { return logits_; }

 private:
  trace(npy_array choices, std::vector<trace_request> requests);

  npy_array choices_;
  std::vector<trace_request> requests_;
  trace_properties properties_;
  std::uint32_t layers_ = 0;
  std::uint32_t experts_per_token_ = 0;
  std::optional<npy_array> probabilities_;
  std::optional<npy_array> logits_;
};

struct trace_writer_options {
  std::uint32_t layers = 0;
  std::uint32_t experts_per_token = 0;
  trace_properties properties;  ///< `experts` must be given.
  bool gate_probabilities = false;
  bool logits = false;
};

/// A request on its way into a trace.
struct recorded_request {
  std::string id;
  std::string label;
  std::uint64_t prefill_rows = 0;
  std::span<const std::uint16_t> choices = {};     ///< [rows][layers][k], prefill first.
  std::span<const float> gate_probabilities = {};  ///< Of the chosen experts, [rows][layers][k].
  std::span<const float> logits = {};              ///< Likewise.
};

/// Writes a trace folder, request by request, in constant memory.
class trace_writer {
 public:
  /// Creates the folder if needed; refuses one that already holds a trace.
  trace_writer(const std::filesystem::path& folder, trace_writer_options options);

  /// Checks ids and sizes (throws fit_error, and the trace stays as it was), then appends.
  void add(const recorded_request& request);
  /// Completes the files; a trace without it is refused by the reader.
  void finish();

  std::uint64_t requests() const noexcept { return ids_.size(); }

 private:
  void check(const recorded_request& request) const;

  std::filesystem::path folder_;
  trace_writer_options options_;
  npy_writer choices_;
  std::optional<npy_writer> probabilities_;
  std::optional<npy_writer> logits_;
  std::ofstream index_;
  std::unordered_set<std::string> ids_;
};

}  // namespace eldr::fit
