#pragma once
/// What precedes a frame's payload on the wire: who sends it in which session, its place in the
/// order, credits that ride along, and where its segments end. Pure.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "messages/frame.hpp"
#include "messages/message_view.hpp"

namespace eldr::messages {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

enum class frame_kind : std::uint8_t {
  message = 1,  ///< Payload: the segments of one Cap'n Proto message, back to back.
  credit = 2,   ///< No payload; the credits are the point.
};

/// As on the wire: this part, then the words of each segment (uint32), padded to 8 bytes.
struct frame_header {
  static constexpr std::uint32_t magic_value = 0x31464c45;  // "ELF1"; the digit is the version.

  std::uint32_t magic = magic_value;
  frame_kind kind = frame_kind::message;
  traffic cls = traffic::bulk;
  std::uint16_t segment_count = 0;
  std::uint64_t source = 0;  ///< Incarnations.
  std::uint64_t destination = 0;
  std::uint64_t nonce = 0;     ///< Of the session.
  std::uint64_t sequence = 0;  ///< Counts from 1 in each class.
  std::uint32_t credits = 0;   ///< Bulk frames that the sender has let go of.
  std::uint32_t unused = 0;    ///< 0.
};
static_assert(sizeof(frame_header) == 48);

/// A header ready to be sent.
struct encoded_header {
  frame_header fixed;
  std::array<std::uint32_t, segments_max> segment_words{};

  const void* data() const noexcept { return this; }
  std::size_t bytes() const noexcept {
    return sizeof(frame_header) + (fixed.segment_count + 1u) / 2 * 8;
  }
};

/// A received header, and the payload cut into segments.
struct decoded_frame {
  frame_header fixed;
  std::array<kj::ArrayPtr<const capnp::word>, segments_max> segments;

  std::span<const kj::ArrayPtr<const capnp::word>> parts() const noexcept {
    return {segments.data(), fixed.segment_count};
  }
};

enum class read_kind : std::uint32_t {
  request = 1,  ///< No payload: asks for bytes of a region.
  data = 2,     ///< Payload: the bytes.
};

/// What precedes a one-sided read's messages where the network cannot read remote memory itself.
/// Begins as frame_header does.
struct read_header {
  static constexpr std::uint32_t magic_value = 0x31524c45;  // "ELR1"

  std::uint32_t magic = magic_value;
  read_kind kind = read_kind::request;
  std::uint64_t source = 0;
  std::uint64_t destination = 0;
  std::uint64_t nonce = 0;
  std::uint64_t ticket = 0;  ///< Chosen by the reader, repeated with the data.
  std::uint64_t offset = 0;  ///< In the region.
  std::uint32_t region = 0;
  std::uint32_t length = 0;  ///< Bytes asked for; the payload's with data.
};
static_assert(sizeof(read_header) == 56);

/// Takes a read's header apart. Returns nullptr, or what is wrong with it.
const char* decode_read(std::span<const std::byte> header, std::size_t payload_bytes,
                        read_header& result) noexcept;

/// The nonce in what claims to be a header; 0 if it is too short to have one.
std::uint64_t nonce_of(std::span<const std::byte> header) noexcept;

/// Takes a header and payload apart. `payload` is 8-byte aligned. Returns nullptr, or what is wrong
/// with the bytes. Looks at nothing outside them.
const char* decode_frame(std::span<const std::byte> header, std::span<const std::byte> payload,
                         std::size_t frame_bytes_max, decoded_frame& result) noexcept;

}  // namespace eldr::messages
