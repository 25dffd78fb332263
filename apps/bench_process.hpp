#pragma once
/// What benchmarks of several processes need: children of their own, and a clean end on Ctrl-C.

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/child_process.hpp"
#include "cluster/signal_inbox.hpp"

namespace eldr::apps {

/// While it lives, SIGINT and SIGTERM do not end the process: check() does.
class interruption {
 public:
  /// Throws std::runtime_error if a signal to stop has come.
  void check();
  int fd() const noexcept { return signals_.fd(); }

 private:
  cluster::signal_inbox signals_;
};

/// Another process of this program. Ends with its owner.
class own_process {
 public:
  /// `stop_ms`: time to end after SIGTERM, before SIGKILL.
  own_process(const std::string& name, std::vector<std::string> arguments, int stop_ms);
  own_process(const own_process&) = delete;
  own_process& operator=(const own_process&) = delete;
  ~own_process();

  pid_t pid() const noexcept { return process_.pid; }
  /// Reads its output up to the first line for which `wanted` holds. Throws std::runtime_error,
  /// with its last line, if it ends before or needs longer than `limit`.
  std::string wait_for_line(const std::function<bool(std::string_view)>& wanted,
                            std::chrono::milliseconds limit, interruption& stop);

 private:
  std::string name_;
  int stop_ms_;
  cluster::child_process process_;
};

}  // namespace eldr::apps
