#pragma once
/// Non-blocking TCP sockets for the bootstrap connections.

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eldr::messages {

/// Owns a file descriptor.
class file_descriptor {
 public:
  explicit file_descriptor(int fd = -1) noexcept : fd_(fd) {}
  file_descriptor(file_descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  file_descriptor& operator=(file_descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~file_descriptor() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_;
};

struct socket_address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// "host:port" or "[v6]:port". Throws std::runtime_error with a sentence.
std::pair<std::string, std::string> split_address(const std::string& address);
/// Without a name server: numeric hosts only; none for names.
std::optional<socket_address> resolve_numeric(const std::string& address);
/// Asks the system's resolver, which may take seconds. Throws std::runtime_error with a sentence.
socket_address resolve(const std::string& address);
/// "host:port" with a numeric host.
std::string to_string(const socket_address&);

/// Throws std::runtime_error with a sentence (in use, not an address of this host ...).
file_descriptor listen_at(const std::string& address);
socket_address local_address(const file_descriptor&);
/// Starts to connect; errors that are known at once throw std::runtime_error.
file_descriptor start_connecting(const socket_address&);
/// A connection that waits at the listener, if any.
file_descriptor accept_from(const file_descriptor& listener);

/// Name of the network device that has this address; empty if none has.
std::string device_of(const socket_address&);
/// This host's address on the way to `address`.
socket_address source_towards(const socket_address& address);

/// A connection read and written piece by piece, never blocking.
class byte_stream {
 public:
  explicit byte_stream(file_descriptor fd) : fd_(std::move(fd)) {}

  int fd() const noexcept { return fd_.get(); }
  /// Once, after connecting: 0, or the errno with which it failed.
  int connect_error() const noexcept;

  /// Adds to what is to be written and writes what the kernel takes.
  void write(std::span<const std::byte> bytes);
  /// Goes on writing; true when all is written.
  bool flush();
  bool wants_to_write() const noexcept { return !out_.empty(); }

  /// Reads what is there, until `most` bytes are waiting in received().
  void read_up_to(std::size_t most);
  std::span<const std::byte> received() const noexcept { return in_; }
  void consume(std::size_t bytes);
  /// The peer has closed it, or it broke.
  bool ended() const noexcept { return ended_; }

 private:
  file_descriptor fd_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  bool ended_ = false;
};

}  // namespace eldr::messages
