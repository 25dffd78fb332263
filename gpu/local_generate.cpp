#include "gpu/local_generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <stdexcept>

namespace eldr::gpu {
namespace {

struct cache_line {
  alignas(64) std::byte bytes[64];
};

/// The sequence, its blocks, and what came out so far.
class local_run {
 public:
  local_run(model_runner& runner, std::span<const token_id> prompt, const sampling& sampling,
            const local_options& options)
      : runner_(runner), sampling_(sampling), options_(options) {
    const std::uint32_t context = runner.geometry().context_max;
    if (prompt.empty()) {
      throw std::runtime_error("The prompt is empty; give at least one token.");
    }
    if (prompt.size() > context) {
      throw std::runtime_error(
          fmt::format("The prompt has {} tokens, but the model's context is {}; shorten it.",
                      prompt.size(), context));
    }
    const auto tokens = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(prompt.size() + std::uint64_t{options.tokens_max}, context));
    const kv_layout& layout = runner.layout();
    slice_.blocks.resize(layout.blocks_for(tokens));
    std::iota(slice_.blocks.begin(), slice_.blocks.end(), block_id{0});
    const std::size_t bytes = slice_.blocks.size() * layout.block_bytes();
    kv_.resize((bytes + sizeof(cache_line) - 1) / sizeof(cache_line));
    memory_ = {.kv = std::as_writable_bytes(std::span(kv_)),
               .rows = {},
               .block_count = static_cast<std::uint32_t>(slice_.blocks.size())};
  }

  local_result run(std::span<const token_id> prompt) {
    if (options_.tokens_max == 0) {
      return std::move(result_);
    }
    const std::uint32_t block = runner_.layout().block_tokens;
    const std::size_t chunk = std::max(options_.chunk_tokens / block, 1U) * block;
    while (prompt.size() > chunk) {
      result_.prefill_s += feed(prompt.first(chunk), false);
      prompt = prompt.subspan(chunk);
    }
    result_.prefill_s += feed(prompt, true);
    while (!finished()) {
      result_.decode_s += feed({&result_.tokens.back(), 1}, true);
    }
    return std::move(result_);
  }

 private:
  /// Runs the model over tokens at the end of the sequence; returns the time that it took.
  double feed(std::span<const token_id> tokens, bool sample) {
    slice_.tokens.assign(tokens.begin(), tokens.end());
    slice_.sample = sample ? std::optional(sampling_) : std::nullopt;
    const step_result step = runner_.run({.slices = {slice_},
                                          .record_choices = options_.record_choices,
                                          .hash_logits = options_.hash_logits && sample},
                                         memory_);
    if (!step.error.empty()) {
      throw std::runtime_error(step.error);
    }
    slice_.position += static_cast<std::uint32_t>(tokens.size());
    const slice_result& out = step.slices.at(0);
    result_.choices.insert(result_.choices.end(), out.choices.begin(), out.choices.end());
    if (sample) {
      result_.tokens.push_back(out.token.value());
      if (options_.hash_logits) {
        result_.logits_hashes.push_back(out.logits_hash);
      }
    }
    return step.compute_s;
  }

  /// After each token: whether it was the last.
  bool finished() {
    const token_id token = result_.tokens.back();
    if (options_.on_token && !options_.on_token(token)) {
      result_.finish = local_finish::stopped;
      return true;
    }
    if (runner_.is_end_token(token)) {
      result_.finish = local_finish::end_token;
      return true;
    }
    result_.finish = local_finish::length;
    return result_.tokens.size() >= options_.tokens_max ||
           slice_.position >= runner_.geometry().context_max;
  }

  model_runner& runner_;
  sampling sampling_;
  const local_options& options_;
  sequence_slice slice_;  ///< Its position is the number of tokens in memory.
  std::vector<cache_line> kv_;
  engine_memory memory_;
  local_result result_;
};

}  // namespace

local_result local_generate(model_runner& runner, std::span<const token_id> prompt,
                            const sampling& sampling, const local_options& options) {
  return local_run(runner, prompt, sampling, options).run(prompt);
}

}  // namespace eldr::gpu
