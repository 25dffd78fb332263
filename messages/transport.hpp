#pragma once
/// Sessions between nodes: framed messages and one-sided reads. Two implementations keep this
/// contract, UCX (messages/ucx_transport.hpp) and in-memory (messages/memory_network.hpp), and one
/// suite of contract tests runs on both.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "messages/frame.hpp"

namespace eldr::messages {

/// Names one session within this process; never reused. 0 is never a session.
using session_id = std::uint64_t;

/// Who a node is. Sent in Hello and Welcome.
struct identity {
  std::string node;               ///< Name from the manifest; unique in the cluster.
  std::string role;               ///< gateway, router, prefill, decode or client.
  std::uint64_t incarnation = 0;  ///< Fresh and random at each start; never 0.
  std::uint64_t fingerprint = 0;  ///< Numerics fingerprint; 0 without an engine.
  std::uint64_t layout = 0;       ///< Hash of geometry and KV layout; 0 without an engine.
  std::string address;            ///< Where it listens, "host:port"; empty for clients.
};

/// Memory of a peer that may be read one-sided; valid for one session.
struct region_info {
  std::uint32_t id = 0;
  std::uint64_t bytes = 0;
};

/// An open session, as seen from this end.
struct peer {
  session_id session = 0;
  identity id;
  std::vector<region_info> regions;
};

/// Why a session ended.
enum class end_reason : std::uint8_t {
  closed_here,      ///< close() or stop() at this end.
  closed_by_peer,   ///< The peer closed it, or its process ended.
  transport_error,  ///< The endpoint reported an error.
  malformed,        ///< The peer sent bytes that are not a valid frame.
  overflow,         ///< Our queue to the peer exceeded its bound.
  replaced,         ///< A newer session with the same node took its place.
};
const char* to_string(end_reason) noexcept;

/// What send() did. Anything but `queued` means that the message is dropped; the session has ended
/// or is about to (its end event follows).
enum class send_result : std::uint8_t { queued, no_session, too_large, overflow };

/// One piece of a one-sided read: `remote_offset` in the region, `length` bytes, to `local`.
struct get_range {
  std::uint64_t remote_offset = 0;
  std::byte* local = nullptr;
  std::size_t length = 0;
};

/// Outcome of a get. The destination is the caller's again only once this has been delivered.
enum class get_status : std::uint8_t {
  ok,
  out_of_range,  ///< A range is outside the descriptor; nothing was issued.
  no_session,    ///< No such session, or no such region in it; nothing was issued.
  failed,        ///< The session ended or the read failed; the destination holds anything.
};
const char* to_string(get_status) noexcept;
using get_callback = std::function<void(get_status)>;

/// Called from the transport's own thread (the progress thread, or the driver of the in-memory
/// network), one at a time, and never from inside a call of the transport's methods. Handlers
/// must be short and must not throw, except that `received` may let a kj::Exception out: the
/// transport then ends the session as malformed.
class transport_events {
 public:
  virtual ~transport_events() = default;
  /// First event of a session.
  virtual void opened(const peer&) = 0;
  virtual void received(frame_ptr) = 0;
  /// Last event of a session: exactly once, no frame of it follows.
  virtual void ended(const peer&, end_reason, const std::string& detail) = 0;
  /// A dial did not lead to a session (refused, wrong token, nobody there ...).
  virtual void dial_failed(const std::string& address, const std::string& error) = 0;
};

/// Limits of a transport. Both ends should agree on frame_bytes_max.
struct transport_limits {
  std::uint32_t frame_bytes_max = 1u << 20;  ///< Larger messages are refused by send().
  std::uint32_t credit_frames = 256;         ///< Bulk frames in flight per session and direction.
  std::size_t queue_bytes_max = 64u << 20;   ///< Per peer, waiting for credits or the wire.
  std::size_t client_queue_bytes_max = 1u << 20;  ///< The same for peers of role client: one that
                                                  ///< does not read is cut off.
  std::uint32_t queue_frames_max = 16384;         ///< Bulk frames, likewise.
  std::uint32_t reserved_frames_max = 4096;  ///< Reserved frames per peer, waiting for the wire.
  std::uint32_t gets_in_flight = 8;          ///< Outstanding reads per get() call.
  std::uint32_t dial_timeout_ms = 2000;

  std::size_t queue_bytes_max_of(const identity& peer) const {
    return peer.role == "client" ? client_queue_bytes_max : queue_bytes_max;
  }
};

/// What a transport has done since it was made. Totals only grow.
struct transport_counters {
  std::uint64_t sessions_open = 0;  ///< Instantaneous.
  std::uint64_t sessions_total = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t bytes_sent = 0;  ///< Payload.
  std::uint64_t bytes_received = 0;
  std::uint64_t credit_stalls = 0;        ///< Bulk frames that had to wait for credits.
  std::uint64_t late_frames_dropped = 0;  ///< Frames of sessions that had ended.
  std::uint64_t malformed = 0;            ///< Sessions ended for what the peer sent.
  std::uint64_t handshakes_refused = 0;   ///< Bootstrap connections that led to no session.
  std::uint64_t gets = 0;
  std::uint64_t get_bytes = 0;
  std::uint64_t sleeps = 0;  ///< Times that the progress thread went to sleep.
};

/// One node's end of all its sessions. All methods may be called from any thread unless stated.
class transport {
 public:
  virtual ~transport() = default;

  /// Allocates zeroed memory that peers may read, before start(). Page-aligned; lives until the
  /// transport is destroyed. Ids count from 0.
  virtual std::span<std::byte> allocate_region(std::size_t bytes) = 0;

  /// Begins to listen (if the identity has an address) and to deliver events. Once.
  /// Throws std::runtime_error with a sentence for people (address in use, cannot resolve ...).
  virtual void start(transport_events& events) = 0;

  /// Opens a session with the node at `address`; answered by opened() or dial_failed().
  virtual void dial(const std::string& address) = 0;

  /// Queues a message; never blocks. Order holds per session and traffic class. A message that is
  /// too large ends the session as an overflow does: nothing is lost in silence.
  virtual send_result send(session_id, outgoing_ptr) = 0;

  /// Ends a session at both ends; ended(closed_here) follows. Unknown sessions are ignored.
  virtual void close(session_id, const std::string& detail) = 0;

  /// One-sided read of `ranges` from a peer's region. Every range is checked against the
  /// descriptor first. `done` is called once, from the transport's thread; if the session ended,
  /// after ended().
  virtual void get(session_id, std::uint32_t region, std::vector<get_range> ranges,
                   get_callback done) = 0;

  /// Sends what is queued (bounded wait), ends all sessions and stops events. Idempotent; after
  /// it returns no callback runs. The sessions' last events are delivered before it returns, hence
  /// it must not be called from a callback (std::logic_error).
  virtual void stop() = 0;

  virtual transport_counters counters() const = 0;

  virtual const identity& self() const noexcept = 0;
};

}  // namespace eldr::messages
