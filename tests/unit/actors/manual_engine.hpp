#pragma once
/// An engine whose steps run when the test says so, on the model without weights.

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/hash_runner.hpp"

namespace eldr::actors::test {

/// Small blocks, so that prompts of a few tokens have several.
inline gpu::hash_runner_options small_blocks() {
  gpu::hash_runner_options options;
  options.block_tokens = 4;
  return options;
}

/// The token that ends an answer.
inline gpu::token_id end_token() {
  return gpu::hash_end_token(small_blocks().geometry);
}

class manual_engine final : public gpu::engine {
 public:
  explicit manual_engine(std::uint32_t block_count)
      : runner_(gpu::make_hash_runner(small_blocks())),
        kv_(block_count * runner_->layout().block_bytes(), std::byte{0xff}),
        rows_(std::size_t{block_count} * row_cells(), std::int8_t{-1}),
        block_count_(block_count) {}

  const gpu::model_geometry& geometry() const noexcept override { return runner_->geometry(); }
  const gpu::kv_layout& layout() const noexcept override { return runner_->layout(); }
  std::uint64_t fingerprint() const noexcept override { return runner_->fingerprint(); }
  std::string backend() const override { return "manual"; }
  bool is_end_token(gpu::token_id token) const noexcept override {
    return runner_->is_end_token(token);
  }
  void submit(gpu::step_batch batch, gpu::step_callback done) override {
    queue_.push_back({std::move(batch), std::move(done)});
  }

  /// Batches that were submitted and have not run.
  std::size_t waiting() const { return queue_.size(); }
  const gpu::step_batch& next() const { return queue_.front().batch; }
  /// Runs the oldest step. With an error it fails, having written nothing.
  void step(std::string error = {}) {
    auto now = std::move(queue_.at(0));
    queue_.pop_front();
    gpu::step_result result;
    if (error.empty()) {
      result = run(now.batch);
    } else {
      result.error = std::move(error);
    }
    now.done(std::move(result));
  }
  gpu::step_result run(const gpu::step_batch& batch) {
    return runner_->run(batch, {kv_, rows_, block_count_});
  }

  std::span<std::byte> kv() { return kv_; }
  std::span<const std::int8_t> rows() const { return rows_; }
  std::size_t row_cells() const { return std::size_t{geometry().layers} * geometry().experts; }

 private:
  struct queued_step {
    gpu::step_batch batch;
    gpu::step_callback done;
  };
  std::unique_ptr<gpu::model_runner> runner_;
  std::vector<std::byte> kv_;
  std::vector<std::int8_t> rows_;
  std::uint32_t block_count_;
  std::deque<queued_step> queue_;
};

}  // namespace eldr::actors::test
