#pragma once
/// Names of requests and of attempts at them.

#include <compare>
#include <cstdint>
#include <string>

#include "messages/protocol.capnp.h"

namespace eldr::actors {

/// Unique in the cluster and over restarts: a gateway's incarnation and its own count.
struct request_id {
  std::uint64_t gateway = 0;
  std::uint64_t counter = 0;
  auto operator<=>(const request_id&) const = default;
};

/// One try at a request. A higher number ends every lower one.
struct attempt_key {
  request_id request;
  std::uint32_t number = 0;
  auto operator<=>(const attempt_key&) const = default;
};

inline attempt_key read(wire::Attempt::Reader in) {
  return {{in.getRequest().getGateway(), in.getRequest().getCounter()}, in.getNumber()};
}

inline void write(wire::Attempt::Builder out, const attempt_key& key) {
  out.initRequest().setGateway(key.request.gateway);
  out.getRequest().setCounter(key.request.counter);
  out.setNumber(key.number);
}

/// "r17.2": counter and attempt, for logs.
inline std::string to_string(const attempt_key& key) {
  return "r" + std::to_string(key.request.counter) + "." + std::to_string(key.number);
}

}  // namespace eldr::actors
