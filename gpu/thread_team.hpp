#pragma once
/// Threads that share the work of one step.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace eldr::gpu {

/// A fixed number of workers, the calling thread among them, for many short parallel phases.
/// run() is called by one thread at a time.
class thread_team {
 public:
  explicit thread_team(std::uint32_t size);
  ~thread_team();
  thread_team(const thread_team&) = delete;
  thread_team& operator=(const thread_team&) = delete;

  std::uint32_t size() const noexcept { return size_; }

  /// Calls f(rank) once for each rank in [0, size) and returns when all are done. `f` must not
  /// throw. Allocates nothing.
  template <class F>
  void run(const F& f) {
    if (size_ == 1) {
      f(0u);
      return;
    }
    start([](const void* context, std::uint32_t rank) { (*static_cast<const F*>(context))(rank); },
          &f);
  }

 private:
  using phase = void (*)(const void* context, std::uint32_t rank);
  void start(phase f, const void* context);
  void work(std::uint32_t rank);

  std::uint32_t size_;
  phase phase_ = nullptr;  ///< Null: the team ends.
  const void* context_ = nullptr;
  std::atomic<std::uint32_t> generation_ = 0;  ///< Counts phases; publishes the two above.
  std::atomic<std::uint32_t> running_ = 0;
  std::vector<std::thread> threads_;
};

struct index_range {
  std::uint32_t begin;
  std::uint32_t end;
};

/// The part of [0, total) that `rank` of `size` works on, in whole multiples of `grain`.
inline index_range share_of(std::uint32_t total, std::uint32_t rank, std::uint32_t size,
                            std::uint32_t grain) {
  const std::uint64_t grains = (std::uint64_t{total} + grain - 1) / grain;
  const auto bound = [&](std::uint64_t r) {
    const std::uint64_t at = grains * r / size * grain;
    return static_cast<std::uint32_t>(at < total ? at : total);
  };
  return {bound(rank), bound(rank + 1)};
}

}  // namespace eldr::gpu
