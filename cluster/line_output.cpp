#include "cluster/line_output.hpp"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace eldr::cluster {
namespace {

constexpr std::string_view erase_line = "\r\x1b[K";

bool writable(int fd, int timeout_ms) {
  pollfd entry{fd, POLLOUT, 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

std::size_t columns(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void line_output::add(std::string_view line) {
  const std::string status = status_;
  erase_status();
  if (dropped_lines_ > 0 && pending_.size() < pending_bytes_max / 2) {
    queue(fmt::format("({} lines were dropped because nobody read them)", dropped_lines_));
    dropped_lines_ = 0;
  }
  queue(line);
  set_status(status);
  write_some();
}

void line_output::set_status(std::string_view text) {
  if (!live_ || text == status_ || pending_.size() >= pending_bytes_max) {
    return;
  }
  erase_status();
  status_ = text.substr(0, columns(fd_) - 1);
  pending_ += status_;
  write_some();
}

void line_output::erase_status() {
  if (!status_.empty()) {
    pending_ += erase_line;
    status_.clear();
  }
}

void line_output::queue(std::string_view line) {
  if (closed_ || pending_.size() + line.size() >= pending_bytes_max) {
    ++dropped_lines_;
    return;
  }
  pending_ += line;
  pending_ += '\n';
}

void line_output::write_some() {
  // A pipe that is writable takes PIPE_BUF bytes without blocking. The descriptor itself must not
  // be made non-blocking: it is shared with whoever else has the terminal open.
  while (!pending_.empty() && !closed_ && writable(fd_, 0)) {
    const ssize_t written =
        ::write(fd_, pending_.data(), std::min<std::size_t>(pending_.size(), PIPE_BUF));
    if (written > 0) {
      pending_.erase(0, static_cast<std::size_t>(written));
    } else if (errno != EINTR && errno != EAGAIN) {
      closed_ = true;
    } else if (errno == EAGAIN) {
      break;
    }
  }
  if (closed_) {
    pending_.clear();
  }
}

void line_output::flush(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  write_some();
  while (!pending_.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return;
    }
    writable(fd_, static_cast<int>(left.count()));
    write_some();
  }
}

}  // namespace eldr::cluster
