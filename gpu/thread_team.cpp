#include "gpu/thread_team.hpp"

namespace eldr::gpu {

thread_team::thread_team(std::uint32_t size) : size_(size == 0 ? 1 : size) {
  for (std::uint32_t rank = 1; rank < size_; ++rank) {
    threads_.emplace_back([this, rank] { work(rank); });
  }
}

thread_team::~thread_team() {
  phase_ = nullptr;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void thread_team::start(phase f, const void* context) {
  phase_ = f;
  context_ = context;
  running_.store(size_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  f(context, 0);
  for (std::uint32_t left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire)) {
    running_.wait(left, std::memory_order_acquire);
  }
}

void thread_team::work(std::uint32_t rank) {
  std::uint32_t seen = 0;
  for (;;) {
    generation_.wait(seen, std::memory_order_acquire);
    ++seen;
    if (phase_ == nullptr) {
      return;
    }
    phase_(context_, rank);
    if (running_.fetch_sub(1, std::memory_order_release) == 1) {
      running_.notify_one();
    }
  }
}

}  // namespace eldr::gpu
