#include "cluster/line_reader.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace eldr::cluster {

line_reader::line_reader(unique_fd fd) : fd_(std::move(fd)) {
  fcntl(fd_.get(), F_SETFL, fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

void line_reader::read_some(std::size_t bytes_max,
                            const std::function<void(std::string_view)>& on_line) {
  std::array<char, 4096> buffer;
  std::size_t total = 0;
  while (fd_ && total < bytes_max) {
    const ssize_t length = ::read(fd_.get(), buffer.data(), buffer.size());
    if (length > 0) {
      total += static_cast<std::size_t>(length);
      split({buffer.data(), static_cast<std::size_t>(length)}, on_line);
    } else if (length < 0 && errno == EAGAIN) {
      return;
    } else if (length == 0 || errno != EINTR) {
      fd_.reset();
      if (!partial_.empty()) {
        on_line(partial_);
        partial_.clear();
      }
    }
  }
}

void line_reader::split(std::string_view bytes,
                        const std::function<void(std::string_view)>& on_line) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t room = line_bytes_max - partial_.size();
    const std::size_t taken = std::min({newline, bytes.size(), room});
    partial_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    const bool at_newline = !bytes.empty() && bytes.front() == '\n';
    if (at_newline) {
      bytes.remove_prefix(1);
    }
    if (at_newline || partial_.size() == line_bytes_max) {
      on_line(partial_);
      partial_.clear();
    }
  }
}

}  // namespace eldr::cluster
