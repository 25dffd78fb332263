#include "gpu/weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpu/safetensors.hpp"

namespace eldr::gpu {

namespace {

/// Tensors that an error names. A configuration may ask for millions that are not there, so the
/// search ends with as many.
constexpr std::size_t named_max = 5;

[[noreturn]] void fail_with_names(const char* what, const std::vector<std::string>& names) {
  throw std::runtime_error(fmt::format("model.safetensors {}: {}{}.", what, fmt::join(names, ", "),
                                       names.size() == named_max ? " ..." : ""));
}

}  // namespace

/// Takes tensors out of the file's map one by one; what is left at the end is unknown.
class model_weights::loader {
 public:
  loader(tensor_map tensors, std::vector<std::unique_ptr<std::byte[]>>& copies)
      : tensors_(std::move(tensors)), copies_(copies) {}

  tensor_view vector(const std::string& name, std::uint32_t length) {
    return take(name, std::vector<std::uint64_t>{length}, 1, length);
  }

  tensor_view matrix(const std::string& name, std::uint32_t rows, std::uint32_t cols) {
    return take(name, std::vector<std::uint64_t>{rows, cols}, rows, cols);
  }

  void finish() const {
    require_none_missing();
    std::vector<std::string> unknown;
    for (const auto& [name, tensor] : tensors_) {
      if (unknown.size() < named_max) {
        unknown.push_back(name);
      }
    }
    if (!unknown.empty()) {
      fail_with_names("has tensors that the engine does not know", unknown);
    }
  }

 private:
  tensor_view take(const std::string& name, const std::vector<std::uint64_t>& shape,
                   std::uint32_t rows, std::uint32_t cols) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      missing_.push_back(name);
      if (missing_.size() == named_max) {
        require_none_missing();
      }
      return {};
    }
    const stored_tensor tensor = std::move(found->second);
    tensors_.erase(found);
    if (tensor.shape != shape) {
      throw std::runtime_error(
          fmt::format("model.safetensors: tensor {} has shape {}, but config.json makes it {}.",
                      name, format_shape(tensor.shape), format_shape(shape)));
    }
    return {tensor.dtype, aligned(tensor), rows, cols};
  }

  void require_none_missing() const {
    if (!missing_.empty()) {
      fail_with_names("lacks tensors that the architecture needs", missing_);
    }
  }

  const std::byte* aligned(const stored_tensor& tensor) {
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.data.data());
    if (address % bytes_of(tensor.dtype) == 0) {
      return tensor.data.data();
    }
    copies_.push_back(std::make_unique<std::byte[]>(tensor.data.size()));
    std::memcpy(copies_.back().get(), tensor.data.data(), tensor.data.size());
    return copies_.back().get();
  }

  tensor_map tensors_;
  std::vector<std::unique_ptr<std::byte[]>>& copies_;
  std::vector<std::string> missing_;
};

layer_weights model_weights::load_layer(loader& tensors, const model_geometry& g,
                                        std::uint32_t index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const std::uint32_t q_width = g.heads * g.head_dim;
  const std::uint32_t kv_width = g.kv_heads * g.head_dim;
  layer_weights layer;
  layer.attention_norm = tensors.vector(prefix + "input_layernorm.weight", g.hidden);
  layer.q = tensors.matrix(prefix + "self_attn.q_proj.weight", q_width, g.hidden);
  layer.k = tensors.matrix(prefix + "self_attn.k_proj.weight", kv_width, g.hidden);
  layer.v = tensors.matrix(prefix + "self_attn.v_proj.weight", kv_width, g.hidden);
  layer.o = tensors.matrix(prefix + "self_attn.o_proj.weight", g.hidden, q_width);
  layer.q_norm = tensors.vector(prefix + "self_attn.q_norm.weight", g.head_dim);
  layer.k_norm = tensors.vector(prefix + "self_attn.k_norm.weight", g.head_dim);
  layer.expert_norm = tensors.vector(prefix + "post_attention_layernorm.weight", g.hidden);
  layer.gate = tensors.matrix(prefix + "mlp.gate.weight", g.experts, g.hidden);
  layer.experts.reserve(g.experts);
  for (std::uint32_t e = 0; e < g.experts; ++e) {
    const std::string expert = fmt::format("{}mlp.experts.{}.", prefix, e);
    layer.experts.push_back(
        {tensors.matrix(expert + "gate_proj.weight", g.expert_width, g.hidden),
         tensors.matrix(expert + "up_proj.weight", g.expert_width, g.hidden),
         tensors.matrix(expert + "down_proj.weight", g.hidden, g.expert_width)});
  }
  return layer;
}

model_weights::model_weights(std::shared_ptr<const model_files> files, const model_config& config)
    : files_(std::move(files)) {
  const model_geometry& g = config.geometry;
  loader tensors(read_safetensors(files_->safetensors()), copies_);
  embedding_ = tensors.matrix("model.embed_tokens.weight", g.vocab, g.hidden);
  output_ =
      config.tie_word_embeddings ? embedding_ : tensors.matrix("lm_head.weight", g.vocab, g.hidden);
  final_norm_ = tensors.vector("model.norm.weight", g.hidden);
  layers_.reserve(g.layers);
  for (std::uint32_t l = 0; l < g.layers; ++l) {
    layers_.push_back(load_layer(tensors, g, l));
  }
  tensors.finish();
}

std::uint64_t model_weights::content_hash() const {
  const auto weights = files_->safetensors();
  const auto config = files_->config_json();
  return XXH3_64bits_withSeed(config.data(), config.size(),
                              XXH3_64bits(weights.data(), weights.size()));
}

}  // namespace eldr::gpu
