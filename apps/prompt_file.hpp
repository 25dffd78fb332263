#pragma once
/// Prompts for `eldr generate`: one JSON object a line, {"prompt": TEXT, "label"?: NAME, "split"?:
/// NAME, "max_tokens"?, "seed"?, "temperature"?}.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace eldr::apps {

struct prompt_line {
  std::string text;
  std::string label;
  std::string split;  ///< Half of a data set that it belongs to, e.g. calibration.
  std::optional<std::uint32_t> tokens_max;
  std::optional<std::uint64_t> seed;
  std::optional<float> temperature;
};

/// Throws std::runtime_error with file, line and what is wrong.
std::vector<prompt_line> read_prompts(const std::filesystem::path& file);

}  // namespace eldr::apps
