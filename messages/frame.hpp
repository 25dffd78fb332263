#pragma once
/// A message on its way out, and a message received. Neither is ever flattened or copied by the
/// transport: senders hand over a Cap'n Proto arena, receivers read the bytes where they landed.

#include <capnp/message.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "messages/protocol.capnp.h"

namespace eldr::messages {

/// Which queue a message takes. Bulk traffic needs the receiver's credits; reserved traffic does
/// not, so it cannot be starved by bulk.
enum class traffic : std::uint8_t { bulk, reserved };

/// Class of a message kind: Abort, Placed, Failed, Cancel, Release, Released and Heartbeat are
/// reserved (the transport's own credit frames too), all else is bulk.
traffic traffic_class(wire::Message::Which kind) noexcept;

/// A message under construction. Create it with a size hint that keeps it in one segment.
class outgoing {
 public:
  /// `first_segment_words`: expected size; the arena grows past it when needed.
  explicit outgoing(std::uint32_t first_segment_words = 64) : arena_(first_segment_words) {
    arena_.initRoot<wire::Message>();
  }

  wire::Message::Builder root() { return arena_.getRoot<wire::Message>(); }
  capnp::MallocMessageBuilder& arena() noexcept { return arena_; }
  /// Total payload in bytes as it stands.
  std::size_t bytes();

 private:
  capnp::MallocMessageBuilder arena_;
};
using outgoing_ptr = std::unique_ptr<outgoing>;

/// A received message, read in place. Thread-safe to hold and to drop anywhere: dropping the last
/// reference gives the buffer back to the transport and the credit back to the sender. An actor
/// that queues work copies what it needs and lets go.
class frame {
 public:
  frame() = default;
  frame(const frame&) = delete;
  frame& operator=(const frame&) = delete;
  virtual ~frame() = default;

  /// Root of the message. Checked against hostile bytes: reads may throw kj::Exception, which
  /// receivers treat as malformed input from the peer.
  virtual wire::Message::Reader root() const = 0;
  /// Payload bytes.
  virtual std::size_t bytes() const noexcept = 0;
  /// Session that it came by.
  virtual std::uint64_t session() const noexcept = 0;
};
using frame_ptr = std::shared_ptr<const frame>;

}  // namespace eldr::messages
