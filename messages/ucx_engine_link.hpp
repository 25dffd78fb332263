#pragma once
/// One bootstrap connection. Internal to the engine.

#include <optional>
#include <string>

#include "messages/ucx_engine.hpp"

namespace eldr::messages {

struct ucx_engine::link {
  enum class stage : std::uint8_t {
    connecting,  ///< Dialer: TCP is not up yet.
    preamble,    ///< The peer's preamble is awaited;
    greeting,    ///< then its Hello or Welcome;
    going,       ///< then the dialer's first frame, or the listener's `go`.
    live,        ///< A session is open; what is said now ends it.
  };

  link(std::uint64_t id_, file_descriptor fd, bool dialer_, std::string address_)
      : id(id_), stream(std::move(fd)), dialer(dialer_), address(std::move(address_)) {}

  std::uint64_t id;
  byte_stream stream;
  bool dialer;
  std::string address;  ///< Dialled; empty at the listener.
  stage at = stage::preamble;
  std::int64_t deadline_ns = 0;  ///< Until it is live.
  std::uint64_t nonce_half = 0;  ///< Dialer's.
  messages::preamble first;
  ucx_session* session = nullptr;
  bool went = false;  ///< Dialer: the listener's `go` was heard.
};

}  // namespace eldr::messages
