#include "messages/frame.hpp"

#include "messages/transport.hpp"

namespace eldr::messages {

traffic traffic_class(wire::Message::Which kind) noexcept {
  switch (kind) {
    case wire::Message::ABORT:
    case wire::Message::PLACED:
    case wire::Message::FAILED:
    case wire::Message::CANCEL:
    case wire::Message::RELEASE:
    case wire::Message::RELEASED:
    case wire::Message::HEARTBEAT:
      return traffic::reserved;
    default:
      return traffic::bulk;
  }
}

std::size_t outgoing::bytes() {
  std::size_t words = 0;
  for (auto segment : arena_.getSegmentsForOutput()) {
    words += segment.size();
  }
  return words * sizeof(capnp::word);
}

const char* to_string(end_reason reason) noexcept {
  switch (reason) {
    case end_reason::closed_here: return "closed here";
    case end_reason::closed_by_peer: return "closed by the peer";
    case end_reason::transport_error: return "transport error";
    case end_reason::malformed: return "malformed bytes from the peer";
    case end_reason::overflow: return "queue overflow";
    case end_reason::replaced: return "replaced by a newer session";
  }
  return "unknown";
}

const char* to_string(get_status status) noexcept {
  switch (status) {
    case get_status::ok: return "ok";
    case get_status::out_of_range: return "range outside the peer's region";
    case get_status::no_session: return "no session or region";
    case get_status::failed: return "read failed";
  }
  return "unknown";
}

}  // namespace eldr::messages
