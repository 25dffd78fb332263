#include "apps/completion_output.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "apps/quantile.hpp"

namespace eldr::apps {

std::string to_json_line(const completion& c, const prompt_line& p) {
  nlohmann::ordered_json out;
  out["index"] = c.index;
  if (!p.label.empty()) {
    out["label"] = p.label;
  }
  out["prompt"] = p.text;
  out["text"] = c.text;
  out["tokens"] = c.tokens;
  out["finish"] = c.finish;
  if (!c.error.empty()) {
    out["error"] = c.error;
    out["retry_after_ms"] = c.retry_after_ms;
  }
  if (!c.prefill_node.empty()) {
    out["prefill_node"] = c.prefill_node;
    out["decode_node"] = c.decode_node;
    out["attempts"] = c.attempts;
    out["cached_tokens"] = c.cached_tokens;
  }
  out["prompt_tokens"] = c.prompt_tokens;
  out["seed"] = c.seed;
  out["ttft_ms"] = c.ttft_ms;
  out["tpot_ms"] = c.tpot_ms();
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string heading(std::size_t index, const prompt_line& p) {
  auto prompt = p.text;
  std::replace(prompt.begin(), prompt.end(), '\n', ' ');
  return fmt::format("[{}{}] {}\n", index + 1, p.label.empty() ? "" : " " + p.label, prompt);
}

std::string summary(const completion& c) {
  if (c.finish == "error") {
    return fmt::format(
        "  -- failed: {}{}\n", c.error,
        c.retry_after_ms > 0 ? fmt::format("; try again in {} ms", c.retry_after_ms) : "");
  }
  const auto where = c.prefill_node.empty()  ? std::string("local")
                     : c.decode_node.empty() ? c.prefill_node
                                             : c.prefill_node + " -> " + c.decode_node;
  return fmt::format("  -- {}: {} + {} tokens ({}), TTFT {:.1f} ms, TPOT {:.2f} ms{}{}\n", where,
                     c.prompt_tokens, c.tokens.size(), c.finish, c.ttft_ms, c.tpot_ms(),
                     c.cached_tokens > 0 ? fmt::format(", {} cached", c.cached_tokens) : "",
                     c.attempts > 1 ? fmt::format(", {} attempts", c.attempts) : "");
}

std::string totals(const std::vector<completion>& all) {
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::size_t tokens = 0;
  std::size_t failed = 0;
  std::map<std::string, std::size_t> per_decoder;
  for (const auto& c : all) {
    tokens += c.tokens.size();
    if (c.finish == "error") {
      ++failed;
      continue;
    }
    ttft.push_back(c.ttft_ms);
    if (c.tokens.size() > 1) {
      tpot.push_back(c.tpot_ms());
    }
    if (!c.decode_node.empty()) {
      ++per_decoder[c.decode_node];
    }
  }
  auto out = fmt::format("{} answers, {} failed, {} tokens", all.size(), failed, tokens);
  if (!ttft.empty()) {
    out += fmt::format("; TTFT p50 {:.1f} ms, p99 {:.1f} ms", median(ttft), quantile(ttft, 0.99));
  }
  if (!tpot.empty()) {
    out += fmt::format("; TPOT p50 {:.2f} ms, p99 {:.2f} ms", median(tpot), quantile(tpot, 0.99));
  }
  out += '\n';
  for (const auto& [node, count] : per_decoder) {
    out += fmt::format("  {} decoded {}\n", node, count);
  }
  return out;
}

}  // namespace eldr::apps
