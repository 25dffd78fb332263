#pragma once
/// golden.json of the default model: what an independent float64 implementation computed.

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::gpu::test {

struct golden_case {
  std::string label;
  std::vector<token_id> prompt;
  std::vector<std::vector<std::vector<std::uint16_t>>> experts;  ///< [tokens][layers][k]
  std::vector<std::pair<token_id, double>> top_logits;           ///< After the prompt.
  std::vector<token_id> greedy;
  double margin_min = 0;  ///< Between first and second logit, over the greedy run.
};

inline std::vector<golden_case> load_golden() {
  std::ifstream file(ELDR_SOURCE_DIR "/models/tiny-moe/golden.json");
  std::vector<golden_case> cases;
  for (const auto& entry : nlohmann::json::parse(file)) {
    golden_case c;
    c.label = entry.at("label");
    c.prompt = entry.at("prompt_ids").get<std::vector<token_id>>();
    c.experts = entry.at("routed_experts").get<decltype(c.experts)>();
    c.top_logits = entry.at("last_logits_top8").get<decltype(c.top_logits)>();
    c.greedy = entry.at("greedy").get<std::vector<token_id>>();
    c.margin_min = entry.at("min_margin");
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace eldr::gpu::test
