#include "fit/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace eldr::fit {

unsigned thread_count(unsigned wanted) noexcept {
  const unsigned available = wanted == 0 ? std::thread::hardware_concurrency() : wanted;
  return std::clamp(available, 1u, 16u);
}

void parallel_for(std::size_t count, unsigned threads,
                  const std::function<void(std::size_t)>& task) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) {
        task(i);
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) {
        failure = std::current_exception();
      }
      next = count;
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t wanted = std::min<std::size_t>(thread_count(threads), count);
    for (std::size_t i = 1; i < wanted; ++i) {
      helpers.emplace_back(work);
    }
    work();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace eldr::fit
