#pragma once
/// Models made up by tests: safetensors bytes, and model files that live in memory.

#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu/model_files.hpp"

namespace eldr::gpu::test {

struct made_tensor {
  std::string dtype = "F32";
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> data;
};

using made_tensors = std::map<std::string, made_tensor>;

inline made_tensor zeros(std::vector<std::uint64_t> shape, std::string dtype = "F32") {
  std::size_t bytes = dtype == "F32" ? 4 : 2;
  for (const std::uint64_t extent : shape) {
    bytes *= extent;
  }
  return {std::move(dtype), std::move(shape), std::vector<std::byte>(bytes)};
}

inline std::string with_header(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

/// `pad`: spaces behind the header, which shift all data.
inline std::string write_safetensors(const made_tensors& tensors, std::size_t pad = 0) {
  nlohmann::json header = nlohmann::json::parse(R"({"__metadata__":{"format":"pt"}})");
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    header[name]["dtype"] = tensor.dtype;
    header[name]["shape"] = tensor.shape;
    header[name]["data_offsets"] = std::vector<std::size_t>{begin, data.size()};
  }
  return with_header(header.dump() + std::string(pad, ' '), data);
}

inline std::span<const std::byte> as_bytes(const std::string& s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

class memory_model final : public model_files {
 public:
  memory_model(std::string config, std::string safetensors, std::string tokenizer = "")
      : config_(std::move(config)),
        tokenizer_(std::move(tokenizer)),
        safetensors_(std::move(safetensors)) {}
  const std::string& name() const noexcept override { return name_; }
  std::string_view config_json() const noexcept override { return config_; }
  std::string_view tokenizer_json() const noexcept override { return tokenizer_; }
  std::span<const std::byte> safetensors() const noexcept override {
    return as_bytes(safetensors_);
  }

 private:
  std::string name_ = "memory";
  std::string config_;
  std::string tokenizer_;
  std::string safetensors_;
};

/// The smallest configuration that is valid.
inline nlohmann::json small_config() {
  return nlohmann::json::parse(R"({
      "model_type":"qwen3_moe", "architectures":["Qwen3MoeForCausalLM"],
      "hidden_size":8, "num_hidden_layers":2, "num_attention_heads":2, "num_key_value_heads":1,
      "head_dim":6, "num_experts":3, "num_experts_per_tok":2, "moe_intermediate_size":4,
      "vocab_size":10, "max_position_embeddings":64})");
}

/// Its tensors, all zero.
inline made_tensors small_tensors() {
  made_tensors tensors{{"model.embed_tokens.weight", zeros({10, 8})},
                       {"lm_head.weight", zeros({10, 8}, "F16")},
                       {"model.norm.weight", zeros({8}, "BF16")}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    tensors[layer + "input_layernorm.weight"] = zeros({8});
    tensors[layer + "post_attention_layernorm.weight"] = zeros({8});
    tensors[layer + "self_attn.q_proj.weight"] = zeros({12, 8});
    tensors[layer + "self_attn.k_proj.weight"] = zeros({6, 8}, "BF16");
    tensors[layer + "self_attn.v_proj.weight"] = zeros({6, 8});
    tensors[layer + "self_attn.o_proj.weight"] = zeros({8, 12});
    tensors[layer + "self_attn.q_norm.weight"] = zeros({6});
    tensors[layer + "self_attn.k_norm.weight"] = zeros({6});
    tensors[layer + "mlp.gate.weight"] = zeros({3, 8});
    for (const std::string expert : {"0", "1", "2"}) {
      tensors[layer + "mlp.experts." + expert + ".gate_proj.weight"] = zeros({4, 8});
      tensors[layer + "mlp.experts." + expert + ".up_proj.weight"] = zeros({4, 8});
      tensors[layer + "mlp.experts." + expert + ".down_proj.weight"] = zeros({8, 4});
    }
  }
  return tensors;
}

}  // namespace eldr::gpu::test
