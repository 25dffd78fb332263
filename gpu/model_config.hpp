#pragma once
/// What config.json says of a model of the Qwen3-MoE architecture.

#include <optional>
#include <string_view>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::gpu {

struct model_config {
  model_geometry geometry;
  float rms_norm_eps = 1e-6F;
  double rope_theta = 10'000;
  /// Gate weights of the chosen experts are divided by their sum.
  bool norm_topk_prob = false;
  /// The output projection is the embedding matrix.
  bool tie_word_embeddings = false;
  std::optional<token_id> bos;
  std::vector<token_id> eos;  ///< May be empty: then only a length ends a text.
};

/// Parses config.json. Throws std::runtime_error that names the key which is missing, malformed,
/// inconsistent with others, or asks for something that the engine does not support. Keys with a
/// default in Hugging Face's Qwen3MoeConfig may be absent, except those of the geometry.
model_config parse_config(std::string_view json);

}  // namespace eldr::gpu
