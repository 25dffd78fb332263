#include "messages/socket.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace eldr::messages {

namespace {

[[noreturn]] void fail(const std::string& sentence) {
  throw std::runtime_error(sentence);
}

std::string reason(int error) {
  return std::strerror(error);
}

/// `error` is getaddrinfo's.
std::optional<socket_address> look_up(const std::string& address, int flags, int& error) {
  const auto [host, port] = split_address(address);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  socket_address result;
  std::memcpy(&result.storage, found->ai_addr, found->ai_addrlen);
  result.length = found->ai_addrlen;
  return result;
}

file_descriptor make_socket(int family) {
  file_descriptor fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    fail("cannot open a socket: " + reason(errno));
  }
  return fd;
}

void set(int fd, int level, int option, int value) noexcept {
  // Best effort: without these a connection is slower to fail, not wrong.
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

/// So that a host that vanished is noticed on an idle connection.
void keep_alive(int fd) noexcept {
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

bool same_host(const sockaddr* a, const sockaddr* b) noexcept {
  if (a == nullptr || a->sa_family != b->sa_family) {
    return false;
  }
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

bool is_loopback(const sockaddr* address) noexcept {
  if (address->sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

}  // namespace

void file_descriptor::reset() noexcept {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

std::pair<std::string, std::string> split_address(const std::string& address) {
  const auto colon = address.rfind(':');
  auto host = colon == std::string::npos ? "" : address.substr(0, colon);
  const auto port = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
  if (host.empty() || !digits || port.size() > 5 || std::stoul(port) > 65'535) {
    fail("\"" + address + "\" is not an address; write host:port with a port up to 65535");
  }
  return {host, port};
}

std::optional<socket_address> resolve_numeric(const std::string& address) {
  int error = 0;
  return look_up(address, AI_NUMERICHOST, error);
}

socket_address resolve(const std::string& address) {
  int error = 0;
  const auto found = look_up(address, 0, error);
  if (!found) {
    fail("cannot resolve " + address + " (" + gai_strerror(error) + "); check the host's name");
  }
  return *found;
}

std::string to_string(const socket_address& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address.get(), address.length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  const bool v6 = address.storage.ss_family == AF_INET6;
  return (v6 ? "[" + std::string(host) + "]" : host) + ":" + port;
}

file_descriptor listen_at(const std::string& address) {
  const auto where = resolve(address);
  auto fd = make_socket(where.storage.ss_family);
  set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), where.get(), where.length) != 0 || ::listen(fd.get(), 128) != 0) {
    if (errno == EADDRINUSE) {
      fail("address " + address + " is in use; stop what listens there or choose another port");
    }
    fail("cannot listen at " + address + " (" + reason(errno) +
         "); it must be an address of this host");
  }
  return fd;
}

socket_address local_address(const file_descriptor& fd) {
  socket_address result;
  result.length = sizeof(result.storage);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&result.storage), &result.length) != 0) {
    fail("cannot tell the address of a socket: " + reason(errno));
  }
  return result;
}

file_descriptor start_connecting(const socket_address& address) {
  auto fd = make_socket(address.storage.ss_family);
  keep_alive(fd.get());
  if (::connect(fd.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    fail(reason(errno));
  }
  return fd;
}

file_descriptor accept_from(const file_descriptor& listener) {
  file_descriptor fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd) {
    keep_alive(fd.get());
  }
  return fd;
}

std::string device_of(const socket_address& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return "";
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  for (const auto* each = all; each != nullptr; each = each->ifa_next) {
    // All of 127/8 is the loopback device's, though it carries one address of it.
    const bool both_loopback =
        each->ifa_addr != nullptr && is_loopback(each->ifa_addr) && is_loopback(address.get());
    if (both_loopback || same_host(each->ifa_addr, address.get())) {
      return each->ifa_name;
    }
  }
  return "";
}

socket_address source_towards(const socket_address& address) {
  // Connecting a datagram socket sends nothing; it only chooses the route.
  const file_descriptor fd(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), address.get(), address.length) != 0) {
    fail("there is no route to " + to_string(address) + ": " + reason(errno));
  }
  return local_address(fd);
}

// --- byte_stream --------------------------------------------------------------------------------

int byte_stream::connect_error() const noexcept {
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

void byte_stream::write(std::span<const std::byte> bytes) {
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  flush();
}

bool byte_stream::flush() {
  std::size_t done = 0;
  while (done < out_.size() && !ended_) {
    const auto written = ::send(fd_.get(), out_.data() + done, out_.size() - done, MSG_NOSIGNAL);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN || errno == ENOTCONN) {
      break;
    } else if (errno != EINTR) {
      // What the peer said before it closed is still to be read; reading will find the end.
      done = out_.size();
    }
  }
  out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(done));
  return out_.empty();
}

void byte_stream::read_up_to(std::size_t most) {
  while (in_.size() < most && !ended_) {
    const auto before = in_.size();
    in_.resize(most);
    const auto got = ::recv(fd_.get(), in_.data() + before, most - before, 0);
    const auto error = errno;
    in_.resize(before + static_cast<std::size_t>(got > 0 ? got : 0));
    if (got == 0 || (got < 0 && error != EAGAIN && error != EINTR)) {
      ended_ = true;
    } else if (got < 0 && error == EAGAIN) {
      return;
    }
  }
}

void byte_stream::consume(std::size_t bytes) {
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(bytes));
}

}  // namespace eldr::messages
