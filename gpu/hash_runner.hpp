#pragma once
/// A model without weights, for simulations and tests: its tokens are a hash of everything that it
/// reads from the KV blocks, so that stale, torn or misplaced KV shows as other tokens.

#include <memory>
#include <span>
#include <vector>

#include "gpu/engine.hpp"

namespace eldr::gpu {

struct hash_runner_options {
  model_geometry geometry{.layers = 2,
                          .experts = 16,
                          .experts_per_token = 2,
                          .hidden = 4,
                          .heads = 1,
                          .kv_heads = 1,
                          .head_dim = 4,
                          .expert_width = 4,
                          .vocab = 251,
                          .context_max = 512};
  std::uint32_t block_tokens = 16;
};

/// Position i's K and V rows hold, in every layer, the running hash h_i = mix(h_{i-1}, token_i, i)
/// with h_{i-1} read back from memory. A token depends on all of h_0 .. h_i as read from memory, on
/// the sampling's seed and on its index; about 1 in 64 is the end token. Experts depend on
/// (token, layer) only.
/// Throws std::runtime_error if a KV row is not a multiple of 8 bytes or the geometry is not sound.
std::unique_ptr<model_runner> make_hash_runner(const hash_runner_options& options = {});

/// The token that ends a sequence of this model.
token_id hash_end_token(const model_geometry& geometry);

/// The experts of one token in one layer, best first.
std::vector<std::uint16_t> hash_choices(const model_geometry& geometry, token_id token,
                                        std::uint32_t layer);

/// What an undisturbed run generates after `prompt`: at most `tokens_max` tokens, the end token
/// last if it comes, computed without any KV memory.
std::vector<token_id> hash_model_tokens(std::span<const token_id> prompt, const sampling& sampling,
                                        std::uint32_t tokens_max,
                                        const hash_runner_options& options = {});

}  // namespace eldr::gpu
