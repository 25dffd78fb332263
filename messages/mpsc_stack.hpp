#pragma once
/// Lock-free hand-over from many threads to one.

#include <atomic>

namespace eldr::messages {

/// Intrusive: T has a member `T* next`. Any thread pushes; one takes everything there is, in the
/// order of the pushes. Does not own what it holds.
template <typename T>
class mpsc_stack {
 public:
  void push(T* item) noexcept {
    auto* top = top_.load(std::memory_order_relaxed);
    do {
      item->next = top;
      // Sequentially consistent: pairs with the consumer's look before it goes to sleep.
    } while (!top_.compare_exchange_weak(top, item, std::memory_order_seq_cst,
                                         std::memory_order_relaxed));
  }

  bool empty() const noexcept { return top_.load(std::memory_order_seq_cst) == nullptr; }

  /// A list linked by `next`, oldest first; nullptr if there is nothing.
  T* take_all() noexcept {
    auto* item = top_.load(std::memory_order_relaxed) == nullptr
                     ? nullptr
                     : top_.exchange(nullptr, std::memory_order_acquire);
    T* first = nullptr;
    while (item != nullptr) {
      auto* older = item->next;
      item->next = first;
      first = item;
      item = older;
    }
    return first;
  }

 private:
  std::atomic<T*> top_{nullptr};
};

}  // namespace eldr::messages
