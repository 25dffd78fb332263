#pragma once
/// An engine in virtual time: a model runner whose steps end when a cost model says so.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gpu/engine.hpp"

namespace eldr::cluster {

/// Virtual cost of a step: fixed, per token, and per sequence.
struct step_cost {
  std::int64_t step_ns = 400'000;
  std::int64_t token_ns = 20'000;

  std::int64_t of(const gpu::step_batch& batch) const {
    std::size_t tokens = 0;
    for (const auto& slice : batch.slices) {
      tokens += slice.tokens.size();
    }
    return step_ns + token_ns * static_cast<std::int64_t>(tokens);
  }
};

class sim_engine final : public gpu::engine {
 public:
  /// Runs a function on this engine after a delay, unless its node has died by then; a frozen
  /// node's waits for the thaw.
  using scheduler = std::function<void(std::int64_t delay_ns, std::function<void()>)>;

  sim_engine(std::shared_ptr<gpu::model_runner> runner, gpu::engine_memory memory, step_cost cost,
             scheduler schedule)
      : runner_(std::move(runner)), memory_(memory), cost_(cost), schedule_(std::move(schedule)) {}

  const gpu::model_geometry& geometry() const noexcept override { return runner_->geometry(); }
  const gpu::kv_layout& layout() const noexcept override { return runner_->layout(); }
  std::uint64_t fingerprint() const noexcept override { return runner_->fingerprint(); }
  std::string backend() const override { return "sim (" + runner_->backend() + ")"; }
  bool is_end_token(gpu::token_id token) const noexcept override {
    return runner_->is_end_token(token);
  }

  void submit(gpu::step_batch batch, gpu::step_callback done) override {
    const auto cost = cost_.of(batch);
    // The memory is read and written when the step ends: blocks that were given away too early
    // have had the longest time to be overwritten.
    schedule_(cost, [this, cost, batch = std::move(batch), done = std::move(done)] {
      auto result = runner_->run(batch, memory_);
      result.compute_s = static_cast<double>(cost) * 1e-9;  // The run knows no other time.
      done(std::move(result));
    });
  }

 private:
  std::shared_ptr<gpu::model_runner> runner_;
  gpu::engine_memory memory_;
  step_cost cost_;
  scheduler schedule_;
};

}  // namespace eldr::cluster
