#pragma once
/// Generation in one process, without any scheduling: what a cluster's tokens are compared with.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gpu/engine.hpp"

namespace eldr::gpu {

struct local_options {
  std::uint32_t tokens_max = 128;
  std::uint32_t chunk_tokens = 256;  ///< Of prefill; rounded down to whole blocks, at least one.
  bool record_choices = false;
  bool hash_logits = false;
  /// Called with each token as soon as it is there; false ends the generation.
  std::function<bool(token_id)> on_token;
};

enum class local_finish : std::uint8_t {
  end_token,  ///< The model ended the text; its end token is the last of `tokens`.
  length,     ///< tokens_max, or the model's context, is used up.
  stopped,    ///< on_token said so.
};

struct local_result {
  std::vector<token_id> tokens;
  local_finish finish = local_finish::length;
  /// [prompt + tokens that were fed back][layers][k], if asked for.
  std::vector<std::uint16_t> choices;
  std::vector<std::uint64_t> logits_hashes;  ///< Of each generated token, if asked for.
  double prefill_s = 0;                      ///< Up to the first token.
  double decode_s = 0;                       ///< All the rest.
};

/// Prefills `prompt` in chunks and decodes token by token, in blocks of its own. Throws
/// std::runtime_error if the prompt is empty, does not fit the context, or a step fails.
local_result local_generate(model_runner& runner, std::span<const token_id> prompt,
                            const sampling& sampling, const local_options& options = {});

}  // namespace eldr::gpu
