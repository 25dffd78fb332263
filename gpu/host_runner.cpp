#include "gpu/host_runner.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpu/batch_check.hpp"
#include "gpu/host_forward.hpp"
#include "gpu/model_config.hpp"
#include "gpu/sampler.hpp"
#include "gpu/weights.hpp"

namespace eldr::gpu {
namespace {

/// To be raised with every change of the arithmetic that changes a bit of a result.
constexpr std::uint32_t kernel_version = 1;
constexpr std::uint32_t threads_max = 256;

kv_layout layout_of(const model_geometry& geometry, const host_options& options) {
  if (options.block_tokens == 0 || options.block_tokens > 127) {
    throw std::runtime_error(fmt::format(
        "A KV block of {} tokens is not possible; choose 1 to 127.", options.block_tokens));
  }
  if (options.threads == 0 || options.threads > threads_max) {
    throw std::runtime_error(fmt::format("{} engine threads are not possible; choose 1 to {}.",
                                         options.threads, threads_max));
  }
  return {.block_tokens = options.block_tokens,
          .layers = geometry.layers,
          .kv_heads = geometry.kv_heads,
          .head_dim = geometry.head_dim,
          .dtype = options.kv};
}

class host_runner final : public model_runner {
 public:
  host_runner(std::shared_ptr<const model_files> files, const host_options& options)
      : files_(std::move(files)),
        config_(parse_config(files_->config_json())),
        layout_(layout_of(config_.geometry, options)),
        kernels_(select_kernels(options.instructions)),
        weights_(files_, config_),
        forward_(config_, weights_, layout_, kernels_, options.threads),
        checker_(config_.geometry, layout_) {
    // The instruction path is not part of it: all paths give equal bits.
    const std::string numerics = fmt::format("host {} kv{} {:016x}", kernel_version,
                                             bytes_of(options.kv), weights_.content_hash());
    fingerprint_ = XXH3_64bits(numerics.data(), numerics.size());
  }

  const model_geometry& geometry() const noexcept override { return config_.geometry; }
  const kv_layout& layout() const noexcept override { return layout_; }
  std::uint64_t fingerprint() const noexcept override { return fingerprint_; }
  std::string backend() const override {
    return fmt::format("host ({}, {} KV)", kernels_.name,
                       layout_.dtype == kv_dtype::f32 ? "f32" : "bf16");
  }
  bool is_end_token(token_id token) const noexcept override {
    return std::find(config_.eos.begin(), config_.eos.end(), token) != config_.eos.end();
  }

  step_result run(const step_batch& batch, const engine_memory& memory) override {
    const auto begin = std::chrono::steady_clock::now();
    step_result result;
    try {
      result.error = checker_.check(batch, memory);
      if (result.error.empty()) {
        compute(batch, memory, result);
      }
    } catch (const std::exception& error) {
      result.error = error.what();
    }
    result.compute_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return result;
  }

 private:
  void compute(const step_batch& batch, const engine_memory& memory, step_result& result) {
    result.slices.resize(batch.slices.size());
    for (std::size_t s = 0; s < batch.slices.size(); ++s) {
      result.slices[s].sequence = batch.slices[s].sequence;
    }
    forward_.run_layers(batch, memory, result);
    with_logits_.clear();
    for (std::uint32_t s = 0; s < batch.slices.size(); ++s) {
      if (batch.slices[s].sample || batch.hash_logits) {
        with_logits_.push_back(s);
      }
    }
    if (with_logits_.empty()) {
      return;
    }
    const row_buffer& logits = forward_.logits(batch, with_logits_);
    for (std::uint32_t i = 0; i < with_logits_.size(); ++i) {
      const sequence_slice& slice = batch.slices[with_logits_[i]];
      finish_slice(slice, batch.hash_logits, {logits.row(i), logits.cols()},
                   result.slices[with_logits_[i]]);
    }
  }

  void finish_slice(const sequence_slice& slice, bool hash, std::span<const float> logits,
                    slice_result& result) {
    if (hash) {
      result.logits_hash = XXH3_64bits(logits.data(), logits.size_bytes());
    }
    if (slice.sample) {
      const auto index = slice.position + static_cast<std::uint32_t>(slice.tokens.size());
      result.token = sampler_.sample(logits, *slice.sample, index);
    }
  }

  std::shared_ptr<const model_files> files_;
  model_config config_;
  kv_layout layout_;
  const kernels& kernels_;
  model_weights weights_;
  host_forward forward_;
  batch_checker checker_;
  sampler sampler_;
  std::uint64_t fingerprint_ = 0;
  std::vector<std::uint32_t> with_logits_;  ///< Slices of this step whose logits are needed.
};

}  // namespace

std::unique_ptr<model_runner> make_host_runner(std::shared_ptr<const model_files> files,
                                               const host_options& options) {
  return std::make_unique<host_runner>(std::move(files), options);
}

}  // namespace eldr::gpu
