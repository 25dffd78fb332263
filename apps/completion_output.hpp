#pragma once
/// How `eldr generate` shows answers: as text for people, or one JSON object a line.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/prompt_file.hpp"

namespace eldr::apps {

/// One finished answer.
struct completion {
  std::size_t index = 0;
  std::vector<std::uint32_t> tokens;
  std::string text;
  std::string finish;  ///< eos, length, cancelled or error.
  std::string error;
  std::uint32_t retry_after_ms = 0;
  std::string prefill_node;  ///< Empty for a local run.
  std::string decode_node;
  std::uint32_t attempts = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_tokens = 0;
  std::uint64_t seed = 0;
  double ttft_ms = 0;
  double total_ms = 0;

  /// Time per output token after the first; 0 for a single token.
  double tpot_ms() const {
    return tokens.size() < 2 ? 0 : (total_ms - ttft_ms) / static_cast<double>(tokens.size() - 1);
  }
};

/// {"index", "label", "prompt", "text", "tokens", "finish", ...}, one line.
std::string to_json_line(const completion&, const prompt_line&);
/// Heading above an answer that streams.
std::string heading(std::size_t index, const prompt_line&);
/// The line below an answer: who served it and how fast.
std::string summary(const completion&);
/// Medians over all answers.
std::string totals(const std::vector<completion>&);

}  // namespace eldr::apps
