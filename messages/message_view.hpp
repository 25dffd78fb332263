#pragma once
/// Reads a message where its segments lie.

#include <capnp/message.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "messages/protocol.capnp.h"

namespace eldr::messages {

/// Messages of more segments are refused by send(); a doubling arena stays far below.
inline constexpr std::size_t segments_max = 32;

/// The root of a message over segments that outlive the view. Hostile bytes make the constructor
/// or the reads throw kj::Exception; the traversal limit grows with the message, so that a small
/// message cannot make its reader walk for long.
class message_view {
 public:
  explicit message_view(std::span<const kj::ArrayPtr<const capnp::word>> segments)
      : count_(copy(segments)),
        reader_(kj::arrayPtr(segments_.data(), count_), options(segments)),
        root_(reader_.getRoot<wire::Message>()) {}
  message_view(const message_view&) = delete;
  message_view& operator=(const message_view&) = delete;
  ~message_view() noexcept = default;

  wire::Message::Reader root() const { return root_; }

 private:
  using segment = kj::ArrayPtr<const capnp::word>;

  std::size_t copy(std::span<const segment> segments) {
    KJ_REQUIRE(!segments.empty() && segments.size() <= segments_max, "bad number of segments");
    std::copy(segments.begin(), segments.end(), segments_.begin());
    return segments.size();
  }

  static capnp::ReaderOptions options(std::span<const segment> segments) {
    capnp::ReaderOptions limits;
    limits.traversalLimitInWords = 4096;
    for (const auto& words : segments) {
      limits.traversalLimitInWords += 64 * words.size();
    }
    limits.nestingLimit = 32;
    return limits;
  }

  std::array<segment, segments_max> segments_;
  std::size_t count_;
  capnp::SegmentArrayMessageReader reader_;
  wire::Message::Reader root_;  // Resolved once: the reader's first use is not thread-safe.
};

}  // namespace eldr::messages
