#pragma once
/// What other threads want of the progress thread, and how they wake it.

#include <atomic>
#include <memory>

#include "messages/mpsc_stack.hpp"
#include "messages/socket.hpp"

namespace eldr::messages {

class ucx_engine;

struct command {
  command() = default;
  command(const command&) = delete;
  command& operator=(const command&) = delete;
  virtual ~command() = default;
  /// On the progress thread; gives up `self` or keeps it.
  virtual void run(ucx_engine&, std::unique_ptr<command> self) = 0;

  command* next = nullptr;
};

/// Lock-free for those who push. Outlives the transport while frames are out.
class inbox {
 public:
  /// Throws std::runtime_error.
  inbox();
  ~inbox();
  inbox(const inbox&) = delete;
  inbox& operator=(const inbox&) = delete;

  void push(std::unique_ptr<command> what) noexcept {
    commands_.push(what.release());
    wake();
  }
  /// A system call only if the progress thread sleeps.
  void wake() noexcept {
    if (sleeping_.load(std::memory_order_seq_cst) && sleeping_.exchange(false)) {
      signal();
    }
  }

  // The progress thread's side.
  command* take_all() noexcept { return commands_.take_all(); }
  int event_fd() const noexcept { return event_.get(); }
  /// False if there is something to do instead.
  bool prepare_to_sleep() noexcept {
    sleeping_.store(true, std::memory_order_seq_cst);
    if (commands_.empty()) {
      return true;
    }
    awake();
    return false;
  }
  void awake() noexcept { sleeping_.store(false, std::memory_order_relaxed); }
  /// Makes the event descriptor quiet again.
  void clear() noexcept;

 private:
  void signal() noexcept;

  mpsc_stack<command> commands_;
  std::atomic<bool> sleeping_{false};
  file_descriptor event_;
};

}  // namespace eldr::messages
