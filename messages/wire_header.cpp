#include "messages/wire_header.hpp"

#include <cstring>

namespace eldr::messages {

std::uint64_t nonce_of(std::span<const std::byte> header) noexcept {
  frame_header fixed;
  if (header.size() < sizeof(fixed)) {
    return 0;
  }
  std::memcpy(&fixed, header.data(), sizeof(fixed));
  return fixed.nonce;
}

const char* decode_read(std::span<const std::byte> header, std::size_t payload_bytes,
                        read_header& result) noexcept {
  if (header.size() != sizeof(result)) {
    return "bad length of a read header";
  }
  std::memcpy(&result, header.data(), sizeof(result));
  if (result.magic != read_header::magic_value) {
    return "not a read header";
  }
  const bool is_request = result.kind == read_kind::request && payload_bytes == 0;
  const bool is_data = result.kind == read_kind::data && payload_bytes == result.length;
  return (is_request || is_data) && result.length > 0 ? nullptr : "bad length of a read";
}

namespace {

const char* check_fixed(const frame_header& fixed, std::size_t header_bytes,
                        std::size_t payload_bytes, std::size_t frame_bytes_max) noexcept {
  if (fixed.magic != frame_header::magic_value || fixed.unused != 0) {
    return "not a frame header";
  }
  if (fixed.cls != traffic::bulk && fixed.cls != traffic::reserved) {
    return "unknown traffic class";
  }
  if (payload_bytes > frame_bytes_max) {
    return "frame larger than agreed";
  }
  if (payload_bytes % sizeof(capnp::word) != 0) {
    return "payload is not a whole number of words";
  }
  const bool is_message = fixed.kind == frame_kind::message;
  const bool is_credit = fixed.kind == frame_kind::credit && fixed.cls == traffic::reserved;
  if (!is_message && !is_credit) {
    return "unknown kind of frame";
  }
  const std::size_t least = is_message ? 1 : 0;
  const std::size_t most = is_message ? segments_max : 0;
  if (fixed.segment_count < least || fixed.segment_count > most) {
    return "bad number of segments";
  }
  if (header_bytes != encoded_header{fixed, {}}.bytes()) {
    return "bad length of the segment table";
  }
  return nullptr;
}

}  // namespace

const char* decode_frame(std::span<const std::byte> header, std::span<const std::byte> payload,
                         std::size_t frame_bytes_max, decoded_frame& result) noexcept {
  if (header.size() < sizeof(frame_header)) {
    return "truncated frame header";
  }
  std::memcpy(&result.fixed, header.data(), sizeof(frame_header));
  if (const char* error =
          check_fixed(result.fixed, header.size(), payload.size(), frame_bytes_max)) {
    return error;
  }
  const auto* words = reinterpret_cast<const capnp::word*>(payload.data());
  std::size_t left = payload.size() / sizeof(capnp::word);
  for (std::size_t i = 0; i < result.fixed.segment_count; ++i) {
    std::uint32_t count = 0;
    std::memcpy(&count, header.data() + sizeof(frame_header) + i * sizeof(count), sizeof(count));
    if (count > left) {
      return "segment table does not fit the payload";
    }
    result.segments[i] = kj::arrayPtr(words, count);
    words += count;
    left -= count;
  }
  return left == 0 ? nullptr : "segment table does not fit the payload";
}

}  // namespace eldr::messages
