#include "cluster/readiness.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "cluster/nearest.hpp"

namespace eldr::cluster {
namespace {

constexpr std::string_view ready_word = "ready";
constexpr std::string_view error_prefix = "error: ";
// One write of at most PIPE_BUF bytes arrives whole.
constexpr std::size_t line_bytes_max = 4096;

void report(int fd, std::string_view prefix, std::string_view sentence) noexcept {
  if (fd < 0) {
    return;
  }
  std::array<char, line_bytes_max> line;  // Not a string: a failing node may be out of memory.
  const std::size_t shown = std::min(sentence.size(), line.size() - prefix.size() - 1);
  char* end = std::copy(prefix.begin(), prefix.end(), line.begin());
  end = std::replace_copy(sentence.begin(), sentence.begin() + shown, end, '\n', ' ');
  *end++ = '\n';
  [[maybe_unused]] const ssize_t written =
      ::write(fd, line.data(), static_cast<std::size_t>(end - line.data()));
  ::close(fd);
}

}  // namespace

void report_ready(int fd) noexcept {
  report(fd, ready_word, "");
}

void report_failure(int fd, std::string_view sentence) noexcept {
  report(fd, error_prefix, sentence);
}

readiness_report parse_readiness(std::string_view line) {
  if (line == ready_word) {
    return {true, {}};
  }
  if (line.starts_with(error_prefix)) {
    return {false, std::string(line.substr(error_prefix.size()))};
  }
  return {false, "it reported " + in_quotes(line) + " instead of being ready"};
}

}  // namespace eldr::cluster
