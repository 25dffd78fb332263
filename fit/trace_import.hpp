#pragma once
/// Traces from what other engines return with a completion.

#include <cstdint>
#include <filesystem>
#include <string>

namespace eldr::fit {

enum class response_format : std::uint8_t {
  /// `routed_experts` of the response or of its only choice: a Base64 .npy file of uint8 or uint16
  /// [tokens - 1][layers][k], or an object {data, shape, start?} whose data are the Base64 bytes.
  vllm,
  /// `routed_experts` in `meta_info`, or in the only choice's `sgl_ext`: Base64 int32, flat.
  sglang,
};

struct import_options {
  response_format format = response_format::vllm;
  std::uint32_t layers = 0;             ///< Needed for SGLang, whose arrays have no shape.
  std::uint32_t experts_per_token = 0;  ///< Likewise.
  std::uint32_t experts = 0;            ///< Per layer; 0: highest id + 1.
  std::uint32_t block_tokens = 0;       ///< KV block size, if known.
  std::string model = {};
};

struct import_summary {
  std::uint64_t requests = 0;
  std::uint64_t rows = 0;
  std::uint32_t experts = 0;
};

/// Reads one JSON response per line and writes a trace folder, which must not exist or be empty.
/// Counts of prompt and completion tokens come from `usage` (or `meta_info`), or from the token
/// ids. Label: the field `label`, where there is one. Every response must have a row for each token
/// but the last, from the first prompt token on, with ids that are valid and distinct; a row of
/// zeros was not recorded. Throws fit_error that names the line; then nothing is left behind.
import_summary import_trace(const std::filesystem::path& responses,
                            const std::filesystem::path& folder, const import_options& options);

}  // namespace eldr::fit
