#pragma once
/// An engine that runs a model runner on a thread of its own.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "gpu/engine.hpp"

namespace eldr::gpu {

/// Steps run in order of submission; `done` is called on the engine's thread and must not throw.
/// The queue has no bound of its own: each caller bounds the steps that it has in flight.
/// The destructor waits for the step that is running and its `done`; steps still queued are dropped
/// and their `done` is destroyed without a call. Not to be destroyed from within a `done`.
class threaded_engine final : public engine {
 public:
  /// `memory` outlives the engine.
  threaded_engine(std::unique_ptr<model_runner> runner, engine_memory memory);
  ~threaded_engine() override;
  threaded_engine(const threaded_engine&) = delete;
  threaded_engine& operator=(const threaded_engine&) = delete;

  const model_geometry& geometry() const noexcept override { return runner_->geometry(); }
  const kv_layout& layout() const noexcept override { return runner_->layout(); }
  std::uint64_t fingerprint() const noexcept override { return runner_->fingerprint(); }
  std::string backend() const override { return backend_; }
  bool is_end_token(token_id token) const noexcept override { return runner_->is_end_token(token); }
  void submit(step_batch batch, step_callback done) override;

 private:
  struct step {
    step_batch batch;
    step_callback done;
  };
  void work();

  std::unique_ptr<model_runner> runner_;
  engine_memory memory_;
  std::string backend_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<step> queue_;  ///< Guarded by mutex_.
  bool stopping_ = false;   ///< Guarded by mutex_.
  std::thread thread_;      ///< Last: it uses all of the above.
};

}  // namespace eldr::gpu
