#include "gpu/threaded_engine.hpp"

#include <exception>
#include <utility>

namespace eldr::gpu {
namespace {

/// A runner reports failures in the result; one that throws all the same must not end the node.
step_result run_guarded(model_runner& runner, const step_batch& batch,
                        const engine_memory& memory) {
  step_result failed;
  try {
    return runner.run(batch, memory);
  } catch (const std::exception& error) {
    failed.error = error.what();
  } catch (...) {
    failed.error = "The engine failed for an unknown reason; see the log of this node.";
  }
  return failed;
}

}  // namespace

threaded_engine::threaded_engine(std::unique_ptr<model_runner> runner, engine_memory memory)
    : runner_(std::move(runner)),
      memory_(memory),
      backend_(runner_->backend()),
      thread_([this] { work(); }) {}

threaded_engine::~threaded_engine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void threaded_engine::submit(step_batch batch, step_callback done) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(batch), std::move(done)});
  }
  changed_.notify_one();
}

void threaded_engine::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) {
      return;
    }
    step next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    next.done(run_guarded(*runner_, next.batch, memory_));
    next = {};  // What the callback holds is released before the lock is taken.
    lock.lock();
  }
}

}  // namespace eldr::gpu
