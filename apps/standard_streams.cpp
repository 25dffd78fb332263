#include "apps/standard_streams.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>

namespace eldr::apps {
namespace {

/// A pipe whose reader had enough, as in `eldr ... | head -1`, is no fault.
bool reader_has_gone() {
  pollfd entry{STDOUT_FILENO, POLLOUT, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLERR) != 0;
}

}  // namespace

void open_standard_streams() noexcept {
  // Opened the wrong way round, so that use fails as it would have on the closed stream. Lowest
  // free numbers are given out first, which makes the order matter.
  for (const auto& [fd, flags] :
       {std::pair{STDIN_FILENO, O_WRONLY}, std::pair{STDOUT_FILENO, O_RDONLY},
        std::pair{STDERR_FILENO, O_RDONLY}}) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      open("/dev/null", flags);
    }
  }
}

void finish_standard_output() {
  errno = 0;
  std::cout.flush();
  if (!std::cout && !reader_has_gone()) {
    const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
    throw std::runtime_error("not all output could be written to standard output" + why);
  }
}

}  // namespace eldr::apps
