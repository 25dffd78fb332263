#pragma once
/// The byte-level alphabet of GPT-2: each byte as a printable character, so that any bytes can be
/// written as text in a vocabulary.

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "gpu/utf8.hpp"

namespace eldr::gpu {

/// Bytes that stand for themselves.
constexpr bool is_plain_byte(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// Character of each byte: itself if plain, else the next one from U+0100.
constexpr std::array<char32_t, 256> byte_level_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    alphabet[byte] = is_plain_byte(byte) ? byte : next++;
  }
  return alphabet;
}

/// The bytes that a token of a vocabulary stands for; none if a character is not of the alphabet.
inline std::optional<std::string> byte_level_decode(std::string_view token) {
  constexpr auto alphabet = byte_level_alphabet();
  constexpr auto bytes = [&] {
    std::array<int, 0x100 + 68> inverse{};
    inverse.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      inverse[alphabet[static_cast<std::size_t>(byte)]] = byte;
    }
    return inverse;
  }();
  std::string result;
  while (!token.empty()) {
    const utf8_step step = utf8_next(token);
    if (step.kind != utf8_kind::whole || step.code >= bytes.size() || bytes[step.code] < 0) {
      return std::nullopt;
    }
    result.push_back(static_cast<char>(bytes[step.code]));
    token.remove_prefix(step.bytes);
  }
  return result;
}

}  // namespace eldr::gpu
