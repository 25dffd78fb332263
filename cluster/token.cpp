#include "cluster/token.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "cluster/unique_fd.hpp"

namespace eldr::cluster {
namespace {

constexpr std::size_t token_bytes = 32;
constexpr std::size_t token_digits = 2 * token_bytes;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& sentence) {
  throw token_error(fmt::format("token file {}: {}", path.string(), sentence));
}

std::string fresh_token(const std::filesystem::path& path) {
  std::array<unsigned char, token_bytes> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail(path, fmt::format("no random bytes to be had: {}", std::strerror(errno)));
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    token += fmt::format("{:02x}", byte);
  }
  return token;
}

void check_private(const std::filesystem::path& path, int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    fail(path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    fail(path, "this is not a regular file; name another in the manifest's 'token_file'");
  }
  if ((status.st_mode & 077) != 0) {
    fail(path, fmt::format("others than its owner can use it (mode {:04o}); run: chmod 600 {}",
                           status.st_mode & 07777, path.string()));
  }
}

/// Throws what a failed open or create calls for.
[[noreturn]] void fail_to(const char* verb, const std::filesystem::path& path, int error) {
  if (error == ENOENT) {
    fail(path, fmt::format("cannot {} it: there is no such file or folder; 'eldr up' creates the "
                           "file, and other hosts need a copy of it",
                           verb));
  }
  fail(path, fmt::format("cannot {} it: {}", verb, std::strerror(error)));
}

/// Puts a complete file in place in one step, so that nobody reads a half-written token. Leaves a
/// file that is there already.
void create(const std::filesystem::path& path) {
  std::string draft = path.string() + ".XXXXXX";
  const unique_fd fd(mkostemp(draft.data(), O_CLOEXEC));  // Exclusive, mode 0600.
  if (!fd) {
    fail_to("create", path, errno);
  }
  const std::string line = fresh_token(path) + "\n";
  const bool written =
      write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
      fsync(fd.get()) == 0;
  const bool linked = written && link(draft.c_str(), path.c_str()) == 0;
  const int error = errno;
  unlink(draft.c_str());
  if (!linked && !(written && error == EEXIST)) {
    fail_to("create", path, error);
  }
}

}  // namespace

std::string read_token(const std::filesystem::path& path) {
  // Non-blocking, for it may turn out to be a pipe.
  const unique_fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    fail_to("read", path, errno);
  }
  check_private(path, fd.get());
  std::array<char, token_digits + 2> buffer{};
  const ssize_t length = read(fd.get(), buffer.data(), buffer.size());
  if (length < 0) {
    fail_to("read", path, errno);
  }
  std::string token(buffer.data(), static_cast<std::size_t>(length));
  if (token.ends_with('\n')) {
    token.pop_back();
  }
  const bool hex = token.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (token.size() != token_digits || !hex) {
    fail(path, fmt::format("it does not hold a token ({} hexadecimal digits); remove it and "
                           "'eldr up' makes a new one",
                           token_digits));
  }
  return token;
}

std::string ensure_token(const std::filesystem::path& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    create(path);
  }
  return read_token(path);
}

}  // namespace eldr::cluster
