#include "gpu/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace eldr::gpu {

namespace {

using nlohmann::json;

// Far above any model; they keep products of dimensions within 64 bits and expert ids within 16.
constexpr std::uint32_t layers_max = 4096;
constexpr std::uint32_t experts_max = 65'535;
constexpr std::uint32_t width_max = 1U << 20;
constexpr std::uint32_t vocab_max = 1U << 24;
constexpr std::uint32_t context_max = 1U << 24;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("config.json: " + what);
}

/// A value as an error message shows it: short, whatever the file holds.
std::string show(const json& value) {
  if (value.is_object()) {
    return "{...}";
  }
  if (value.is_array()) {
    return value.size() == 1 && !value[0].is_structured() ? fmt::format("[{}]", show(value[0]))
                                                          : "[...]";
  }
  constexpr std::size_t shown_max = 80;
  const std::string text = value.dump();
  return text.size() <= shown_max ? text : text.substr(0, shown_max) + "...";
}

/// A key's value, or null if it is absent.
const json& value_of(const json& config, const char* key) {
  static const json null;
  const auto found = config.find(key);
  return found == config.end() ? null : *found;
}

std::uint32_t as_count(const json& value, const char* key, std::uint32_t max) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > max) {
    fail(fmt::format("{} must be a whole number up to {}, but is {}.", key, max, show(value)));
  }
  return value.get<std::uint32_t>();
}

std::uint32_t dimension(const json& config, const char* key, std::uint32_t max) {
  const json& value = value_of(config, key);
  if (value.is_null()) {
    fail(fmt::format("{} is missing.", key));
  }
  const std::uint32_t count = as_count(value, key, max);
  if (count == 0) {
    fail(fmt::format("{} must not be 0.", key));
  }
  return count;
}

double positive(const json& config, const char* key, double otherwise) {
  const json& value = value_of(config, key);
  if (value.is_null()) {
    return otherwise;
  }
  if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>())) {
    fail(fmt::format("{} must be a number above 0, but is {}.", key, show(value)));
  }
  return value.get<double>();
}

bool flag(const json& config, const char* key) {
  const json& value = value_of(config, key);
  if (!value.is_null() && !value.is_boolean()) {
    fail(fmt::format("{} must be true or false, but is {}.", key, show(value)));
  }
  return value.is_boolean() && value.get<bool>();
}

/// Does the value ask for nothing: absent, null, false, 0 or empty?
bool is_off(const json& value) {
  return value.is_null() || value == false || value == 0 || (!value.is_number() && value.empty());
}

/// Refuses a key unless it is off.
void require_off(const json& config, const char* key, const char* feature) {
  const json& value = value_of(config, key);
  if (!is_off(value)) {
    fail(fmt::format("{} is not supported ({} = {}).", feature, key, show(value)));
  }
}

/// Refuses a key unless it is absent or has the one value that the engine knows.
void require_value(const json& config, const char* key, const json& only) {
  const json& value = value_of(config, key);
  if (!value.is_null() && value != only) {
    fail(fmt::format("{} = {} is not supported, only {} is.", key, show(value), show(only)));
  }
}

void check_architecture(const json& config) {
  const json& type = value_of(config, "model_type");
  if (type != "qwen3_moe") {
    fail(fmt::format("model_type = {} is not supported, only \"qwen3_moe\" is.", show(type)));
  }
  require_value(config, "architectures", json::array({"Qwen3MoeForCausalLM"}));
}

void check_features(const json& config) {
  require_off(config, "rope_scaling", "RoPE scaling");
  require_off(config, "use_sliding_window", "Sliding-window attention");
  require_off(config, "mlp_only_layers", "A mix of dense and MoE layers");
  require_value(config, "decoder_sparse_step", 1);
  require_off(config, "shared_expert_intermediate_size", "A shared expert");
  require_off(config, "n_shared_experts", "A shared expert");
  require_off(config, "num_shared_experts", "A shared expert");
  require_off(config, "attention_bias", "A bias in attention");
  require_off(config, "quantization_config", "Quantisation of weights");
  require_off(config, "compression_config", "Quantisation of weights");
  require_value(config, "hidden_act", "silu");
  const json& types = value_of(config, "layer_types");
  if (types.is_array() &&
      std::ranges::any_of(types, [](const json& type) { return type != "full_attention"; })) {
    fail("layer_types other than \"full_attention\" are not supported.");
  }
}

/// rope_theta, at the top level or (in newer files) in rope_parameters.
double rope_theta_of(const json& config) {
  const json& parameters = value_of(config, "rope_parameters");
  if (parameters.is_null()) {
    return positive(config, "rope_theta", 10'000);
  }
  if (!parameters.is_object()) {
    fail("rope_parameters must be an object.");
  }
  const json& type = value_of(parameters, "rope_type");
  if (!type.is_null() && type != "default") {
    fail(fmt::format("rope_type = {} in rope_parameters is not supported, only \"default\" is.",
                     show(type)));
  }
  return positive(parameters, "rope_theta", 10'000);
}

model_geometry geometry_of(const json& config) {
  model_geometry g;
  g.layers = dimension(config, "num_hidden_layers", layers_max);
  g.experts = dimension(config, "num_experts", experts_max);
  g.experts_per_token = dimension(config, "num_experts_per_tok", experts_max);
  g.hidden = dimension(config, "hidden_size", width_max);
  g.heads = dimension(config, "num_attention_heads", width_max);
  g.kv_heads = dimension(config, "num_key_value_heads", width_max);
  g.expert_width = dimension(config, "moe_intermediate_size", width_max);
  g.vocab = dimension(config, "vocab_size", vocab_max);
  g.context_max = dimension(config, "max_position_embeddings", context_max);
  if (value_of(config, "head_dim").is_null()) {
    if (g.hidden % g.heads != 0) {
      fail(
          fmt::format("hidden_size {} is not a multiple of num_attention_heads {}, and head_dim "
                      "is missing.",
                      g.hidden, g.heads));
    }
    g.head_dim = g.hidden / g.heads;
  } else {
    g.head_dim = dimension(config, "head_dim", width_max);
  }
  return g;
}

void check_geometry(const model_geometry& g) {
  if (g.experts_per_token > g.experts) {
    fail(fmt::format("num_experts_per_tok {} is more than num_experts {}.", g.experts_per_token,
                     g.experts));
  }
  if (g.heads % g.kv_heads != 0) {
    fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}.", g.heads,
                     g.kv_heads));
  }
  if (g.head_dim % 2 != 0) {
    fail(fmt::format("head_dim {} is odd, but RoPE turns pairs.", g.head_dim));
  }
  if (std::uint64_t{g.heads} * g.head_dim > width_max) {
    fail(fmt::format("num_attention_heads {} times head_dim {} is more than {}.", g.heads,
                     g.head_dim, width_max));
  }
}

/// A token id, a list of them or null.
std::vector<token_id> token_ids(const json& config, const char* key, std::uint32_t vocab) {
  const json& value = value_of(config, key);
  std::vector<token_id> ids;
  if (value.is_array()) {
    for (const json& id : value) {
      ids.push_back(as_count(id, key, vocab - 1));
    }
  } else if (!value.is_null()) {
    ids.push_back(as_count(value, key, vocab - 1));
  }
  return ids;
}

}  // namespace

model_config parse_config(std::string_view text) {
  json config;
  try {
    config = json::parse(text);
  } catch (const json::parse_error& e) {
    fail(fmt::format("it is not valid JSON (fault at byte {}).", e.byte));
  } catch (const json::exception&) {
    fail("it holds a number that is out of range.");
  }
  if (!config.is_object()) {
    fail("it is not a JSON object.");
  }
  check_architecture(config);
  check_features(config);
  model_config result;
  result.geometry = geometry_of(config);
  check_geometry(result.geometry);
  result.rms_norm_eps = static_cast<float>(positive(config, "rms_norm_eps", 1e-6));
  result.rope_theta = rope_theta_of(config);
  result.norm_topk_prob = flag(config, "norm_topk_prob");
  result.tie_word_embeddings = flag(config, "tie_word_embeddings");
  const auto bos = token_ids(config, "bos_token_id", result.geometry.vocab);
  if (!bos.empty()) {
    result.bos = bos.front();
  }
  result.eos = token_ids(config, "eos_token_id", result.geometry.vocab);
  return result;
}

}  // namespace eldr::gpu
