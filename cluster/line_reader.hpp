#pragma once
/// Lines from a pipe, without waiting and with a bound on their length.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "cluster/unique_fd.hpp"

namespace eldr::cluster {

class line_reader {
 public:
  static constexpr std::size_t line_bytes_max = 16 * 1024;

  line_reader() = default;
  /// Makes `fd` non-blocking.
  explicit line_reader(unique_fd fd);

  /// Reads at most `bytes_max` of what is there and calls `on_line` for each whole line, without
  /// its newline; longer lines come in pieces of line_bytes_max. At the end of the input a last
  /// line may lack its newline, and the descriptor is closed.
  void read_some(std::size_t bytes_max, const std::function<void(std::string_view)>& on_line);

  /// To poll for reading; -1 once the input has ended.
  int fd() const noexcept { return fd_.get(); }

 private:
  void split(std::string_view bytes, const std::function<void(std::string_view)>& on_line);

  unique_fd fd_;
  std::string partial_;
};

}  // namespace eldr::cluster
