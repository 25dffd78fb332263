#include "gpu/hash_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "gpu/batch_check.hpp"

namespace eldr::gpu {
namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads every bit.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return mix(mix(a) ^ b);
}

/// What the model knows after some positions: the last position's hash, and the digest of all.
struct context_state {
  std::uint64_t hash = 0;
  std::uint64_t digest = 0;
  void add(std::uint64_t position_hash) {
    hash = position_hash;
    digest = mix(digest, position_hash);
  }
};

std::uint64_t next_hash(std::uint64_t hash, token_id token, std::uint32_t position) {
  return mix(hash, std::uint64_t{position} << 32 | token);
}

token_id draw(const context_state& state, const sampling& sampling, std::uint32_t index,
              const model_geometry& geometry) {
  const std::uint64_t x = mix(mix(state.digest, sampling.seed), index);
  const bool end = x >> 58 == 0;
  return end ? hash_end_token(geometry) : static_cast<token_id>(x % (geometry.vocab - 1));
}

/// Writes the k experts of (token, layer) to `out`.
void choose(const model_geometry& geometry, token_id token, std::uint32_t layer,
            std::uint16_t* out) {
  std::uint64_t x = mix(token, layer);
  for (std::uint32_t i = 0; i < geometry.experts_per_token;) {
    x = mix(x);
    const auto expert = static_cast<std::uint16_t>(x % geometry.experts);
    if (std::find(out, out + i, expert) == out + i) {
      out[i++] = expert;
    }
  }
}

class hash_runner final : public model_runner {
 public:
  explicit hash_runner(const hash_runner_options& options)
      : geometry_(options.geometry),
        layout_{.block_tokens = options.block_tokens,
                .layers = geometry_.layers,
                .kv_heads = geometry_.kv_heads,
                .head_dim = geometry_.head_dim,
                .dtype = kv_dtype::f32},
        checker_(geometry_, layout_),
        choice_(geometry_.experts_per_token),
        seen_(std::size_t{geometry_.layers} * geometry_.experts) {
    if (geometry_.layers == 0 || geometry_.vocab < 2 || geometry_.experts_per_token == 0 ||
        geometry_.experts_per_token > geometry_.experts || geometry_.experts > 65536) {
      throw std::runtime_error(
          "The hash model needs at least one layer, two tokens, and between one expert per token "
          "and all of at most 65,536.");
    }
    if (layout_.row_bytes() == 0 || layout_.row_bytes() % 8 != 0) {
      throw std::runtime_error(fmt::format(
          "The hash model's KV row has {} bytes; choose kv_heads and head_dim for a multiple of 8.",
          layout_.row_bytes()));
    }
    if (layout_.block_tokens == 0 || layout_.block_tokens > 127) {
      throw std::runtime_error(fmt::format("A block of {} tokens is not possible; choose 1 to 127.",
                                           layout_.block_tokens));
    }
  }

  const model_geometry& geometry() const noexcept override { return geometry_; }
  const kv_layout& layout() const noexcept override { return layout_; }
  std::uint64_t fingerprint() const noexcept override {
    return mix(mix(0x68617368, geometry_.vocab), std::uint64_t{geometry_.layers} << 32 |
                                                     geometry_.experts << 8 |
                                                     geometry_.experts_per_token);
  }
  std::string backend() const override { return "hash (no weights)"; }
  bool is_end_token(token_id token) const noexcept override {
    return token == hash_end_token(geometry_);
  }

  step_result run(const step_batch& batch, const engine_memory& memory) override {
    const auto begin = std::chrono::steady_clock::now();
    step_result result;
    result.error = checker_.check(batch, memory);
    if (!result.error.empty()) {
      return result;
    }
    std::fill(seen_.begin(), seen_.end(), 0);
    for (const sequence_slice& slice : batch.slices) {
      result.slices.push_back(run_slice(slice, batch, memory));
    }
    for (std::uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      const auto* row = seen_.data() + std::size_t{layer} * geometry_.experts;
      result.distinct_experts.push_back(
          static_cast<std::uint16_t>(std::count(row, row + geometry_.experts, 1)));
    }
    result.compute_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return result;
  }

 private:
  slice_result run_slice(const sequence_slice& slice, const step_batch& batch,
                         const engine_memory& memory) {
    slice_result result{.sequence = slice.sequence, .token = {}, .logits_hash = 0, .choices = {}};
    context_state state;
    for (std::uint32_t i = 0; i < slice.position; ++i) {
      state.add(read(memory, slice, i));
    }
    if (slice.write_rows) {
      clear_rows(slice, memory);
    }
    std::uint32_t position = slice.position;
    for (const token_id token : slice.tokens) {
      write(memory, slice, position, next_hash(state.hash, token, position));
      state.add(read(memory, slice, position));
      record_choices(slice, token, position, memory, batch.record_choices, result.choices);
      ++position;
    }
    if (slice.sample) {
      result.token = draw(state, *slice.sample, position, geometry_);
    }
    if (batch.hash_logits) {
      result.logits_hash = mix(state.digest);
    }
    return result;
  }

  /// Calls f(address of the word, its key) for every 8-byte word of a position, in all layers.
  template <class F>
  void for_each_word(const engine_memory& memory, const sequence_slice& slice,
                     std::uint32_t position, F f) const {
    std::byte* block =
        memory.kv.data() + slice.blocks[position / layout_.block_tokens] * layout_.block_bytes();
    const std::size_t row = position % layout_.block_tokens * layout_.row_bytes();
    for (std::uint32_t plane = 0; plane < 2 * layout_.layers; ++plane) {
      std::byte* words = block + plane * layout_.plane_bytes() + row;
      for (std::size_t offset = 0; offset < layout_.row_bytes(); offset += 8) {
        f(words + offset, mix(plane, offset));
      }
    }
  }

  /// Each copy is stored under a key of its own, so that swapped layers or planes show as well.
  void write(const engine_memory& memory, const sequence_slice& slice, std::uint32_t position,
             std::uint64_t hash) const {
    for_each_word(memory, slice, position, [&](std::byte* at, std::uint64_t key) {
      const std::uint64_t word = hash ^ key;
      std::memcpy(at, &word, sizeof word);
    });
  }

  /// The hash that a position holds if all of its copies agree, otherwise some other number.
  std::uint64_t read(const engine_memory& memory, const sequence_slice& slice,
                     std::uint32_t position) const {
    std::uint64_t first = 0;
    std::uint64_t wrong = 0;
    bool any = false;
    for_each_word(memory, slice, position, [&](const std::byte* at, std::uint64_t key) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, sizeof word);
      word ^= key;
      if (!any) {
        first = word;
        any = true;
      } else if (word != first) {
        wrong = mix(wrong, word);
      }
    });
    return wrong == 0 ? first : mix(first, wrong);
  }

  std::int8_t* row_of(const engine_memory& memory, block_id block) const {
    return memory.rows.data() + std::size_t{block} * geometry_.layers * geometry_.experts;
  }

  void clear_rows(const sequence_slice& slice, const engine_memory& memory) const {
    const std::size_t first = slice.position / layout_.block_tokens;
    const std::size_t last = (slice.position + slice.tokens.size() - 1) / layout_.block_tokens;
    for (std::size_t b = first; b <= last; ++b) {
      std::fill_n(row_of(memory, slice.blocks[b]),
                  std::size_t{geometry_.layers} * geometry_.experts, std::int8_t{0});
    }
  }

  void record_choices(const sequence_slice& slice, token_id token, std::uint32_t position,
                      const engine_memory& memory, bool record,
                      std::vector<std::uint16_t>& choices) {
    const block_id block = slice.blocks[position / layout_.block_tokens];
    for (std::uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      choose(geometry_, token, layer, choice_.data());
      for (const std::uint16_t expert : choice_) {
        const std::size_t cell = std::size_t{layer} * geometry_.experts + expert;
        seen_[cell] = 1;
        if (slice.write_rows) {
          ++row_of(memory, block)[cell];
        }
      }
      if (record) {
        choices.insert(choices.end(), choice_.begin(), choice_.end());
      }
    }
  }

  model_geometry geometry_;
  kv_layout layout_;
  batch_checker checker_;
  std::vector<std::uint16_t> choice_;  ///< Scratch: one token's experts in one layer.
  std::vector<std::uint8_t> seen_;     ///< Scratch: [layers][experts] read in this step.
};

}  // namespace

std::unique_ptr<model_runner> make_hash_runner(const hash_runner_options& options) {
  return std::make_unique<hash_runner>(options);
}

token_id hash_end_token(const model_geometry& geometry) {
  return geometry.vocab - 1;
}

std::vector<std::uint16_t> hash_choices(const model_geometry& geometry, token_id token,
                                        std::uint32_t layer) {
  std::vector<std::uint16_t> experts(geometry.experts_per_token);
  choose(geometry, token, layer, experts.data());
  return experts;
}

std::vector<token_id> hash_model_tokens(std::span<const token_id> prompt, const sampling& sampling,
                                        std::uint32_t tokens_max,
                                        const hash_runner_options& options) {
  context_state state;
  std::uint32_t position = 0;
  const auto advance = [&](token_id token) { state.add(next_hash(state.hash, token, position++)); };
  for (const token_id token : prompt) {
    advance(token);
  }
  std::vector<token_id> tokens;
  while (tokens.size() < tokens_max && position <= options.geometry.context_max) {
    tokens.push_back(draw(state, sampling, position, options.geometry));
    if (tokens.back() == hash_end_token(options.geometry)) {
      break;
    }
    advance(tokens.back());
  }
  return tokens;
}

}  // namespace eldr::gpu
