#pragma once
/// Runs a Qwen3-MoE model on the host's processor.

#include <cstdint>
#include <memory>

#include "gpu/engine.hpp"
#include "gpu/kernels.hpp"
#include "gpu/model_files.hpp"

namespace eldr::gpu {

struct host_options {
  kv_dtype kv = kv_dtype::f32;
  std::uint32_t block_tokens = 16;  ///< 1 to 127, so that a signature cell fits int8.
  std::uint32_t threads = 1;        ///< Within a step; results do not depend on it.
  isa instructions = isa::best;     ///< Likewise.
};

/// Loads the configuration and weights. Throws std::runtime_error that says what is missing, broken
/// or not supported. A token's logits depend on the tokens before it, the weights and the KV dtype
/// only, to the bit; the fingerprint covers those.
std::unique_ptr<model_runner> make_host_runner(std::shared_ptr<const model_files> files,
                                               const host_options& options = {});

}  // namespace eldr::gpu
