#pragma once
/// The weights of a model, as the kernels read them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/model_config.hpp"
#include "gpu/model_files.hpp"
#include "gpu/tensor_view.hpp"

namespace eldr::gpu {

struct expert_weights {
  tensor_view gate;  ///< [expert_width][hidden]
  tensor_view up;    ///< [expert_width][hidden]
  tensor_view down;  ///< [hidden][expert_width]
};

struct layer_weights {
  tensor_view attention_norm;  ///< [hidden], before attention (input_layernorm).
  tensor_view q;               ///< [heads * head_dim][hidden]
  tensor_view k;               ///< [kv_heads * head_dim][hidden]
  tensor_view v;               ///< [kv_heads * head_dim][hidden]
  tensor_view o;               ///< [hidden][heads * head_dim]
  tensor_view q_norm;          ///< [head_dim]
  tensor_view k_norm;          ///< [head_dim]
  tensor_view expert_norm;     ///< [hidden], before the experts (post_attention_layernorm).
  tensor_view gate;            ///< [experts][hidden], the router of the layer.
  std::vector<expert_weights> experts;
};

/// Views into the model's files, which it keeps alive. Tensors that lie unaligned in the file are
/// copied once. Dtypes may differ from tensor to tensor.
class model_weights {
 public:
  /// Throws std::runtime_error that names tensors which are missing, unknown to the architecture
  /// or of another shape than the configuration says.
  model_weights(std::shared_ptr<const model_files> files, const model_config& config);

  const tensor_view& embedding() const noexcept { return embedding_; }    ///< [vocab][hidden]
  const tensor_view& output() const noexcept { return output_; }          ///< [vocab][hidden]
  const tensor_view& final_norm() const noexcept { return final_norm_; }  ///< [hidden]
  const std::vector<layer_weights>& layers() const noexcept { return layers_; }

  /// Hash (XXH3) of all bytes of model.safetensors and config.json. Reads them all.
  std::uint64_t content_hash() const;

 private:
  class loader;
  static layer_weights load_layer(loader& tensors, const model_geometry& g, std::uint32_t index);

  std::shared_ptr<const model_files> files_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;  ///< Of unaligned tensors.
  tensor_view embedding_;
  tensor_view output_;
  tensor_view final_norm_;
  std::vector<layer_weights> layers_;
};

}  // namespace eldr::gpu
