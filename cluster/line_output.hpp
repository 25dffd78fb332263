#pragma once
/// Lines to a terminal, file or pipe that may not be read: never waits, never grows without bound.

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace eldr::cluster {

/// What cannot be written soon is dropped and counted, since a reader that has stopped must not
/// stop the writer. On a terminal it can keep a status line below the other lines.
class line_output {
 public:
  static constexpr std::size_t pending_bytes_max = 256 * 1024;

  /// `fd` stays the caller's. `live`: it is a terminal that understands ANSI control sequences.
  line_output(int fd, bool live) : fd_(fd), live_(live) {}

  /// Queues a line (without its newline) and writes what can be written at once.
  void add(std::string_view line);
  /// Replaces the status line; empty removes it. Nothing unless `live`.
  void set_status(std::string_view text);

  bool live() const noexcept { return live_; }
  bool shows_status() const noexcept { return !status_.empty(); }
  /// To poll for writing; -1 if nothing is pending.
  int pending_fd() const noexcept { return pending_.empty() ? -1 : fd_; }
  /// Writes what can be written without waiting.
  void write_some();
  /// Writes all, waiting up to `limit`.
  void flush(std::chrono::milliseconds limit);

 private:
  void queue(std::string_view line);
  void erase_status();

  int fd_;
  bool live_;
  bool closed_ = false;  ///< Nobody will ever read it.
  std::string pending_;
  std::size_t dropped_lines_ = 0;
  std::string status_;  ///< As shown, cut to the terminal's width.
};

}  // namespace eldr::cluster
