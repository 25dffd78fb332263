#pragma once
/// Signals as something to poll for instead of handlers.

#include <signal.h>

#include "cluster/unique_fd.hpp"

namespace eldr::cluster {

/// While it lives, SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked in the thread that made it (and
/// in threads made later) and can be read here. Those that were being ignored, as `nohup` and `&`
/// do, stay ignored, except SIGTERM.
class signal_inbox {
 public:
  /// Throws std::system_error.
  signal_inbox();
  signal_inbox(const signal_inbox&) = delete;
  signal_inbox& operator=(const signal_inbox&) = delete;
  /// Discards what is pending and restores the mask.
  ~signal_inbox();

  /// To poll for reading.
  int fd() const noexcept { return fd_.get(); }
  /// Next pending signal, 0 if none.
  int take() noexcept;

 private:
  sigset_t previous_{};
  unique_fd fd_;
};

}  // namespace eldr::cluster
