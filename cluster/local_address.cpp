#include "cluster/local_address.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "cluster/unique_fd.hpp"

namespace eldr::cluster {

bool is_local_host(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) {
    return false;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const unique_fd probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Port 0: the address alone decides.
  return probe && bind(probe.get(), found->ai_addr, found->ai_addrlen) == 0;
}

}  // namespace eldr::cluster
