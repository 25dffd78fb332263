#pragma once
/// UTF-8, one character at a time.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace eldr::gpu {

enum class utf8_kind : std::uint8_t {
  whole,    ///< A well-formed character.
  cut_off,  ///< The text ends within a character that is well-formed so far.
  invalid,  ///< No continuation makes this a character.
};

struct utf8_step {
  utf8_kind kind;
  /// Of the character; of the longest part that could have begun one, at least 1, if invalid (such
  /// a part is what one U+FFFD stands for).
  std::size_t bytes;
  char32_t code;  ///< If whole.
};

/// What `text` begins with; it must not be empty. Follows table 3-7 of the Unicode standard, so
/// overlong forms and surrogates are invalid.
constexpr utf8_step utf8_next(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) {
    return {utf8_kind::whole, 1, lead};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {utf8_kind::invalid, 1, 0};
  }
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Bounds of the second byte; all later ones are 0x80 to 0xBF.
  unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t code = lead & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) {
      return {utf8_kind::cut_off, i, 0};
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < low || byte > high) {
      return {utf8_kind::invalid, i, 0};
    }
    code = code << 6 | (byte & 0x3FU);
    low = 0x80;
    high = 0xBF;
  }
  return {utf8_kind::whole, length, code};
}

/// Place of the first byte that is not part of a well-formed character; text.size() if none.
constexpr std::size_t utf8_fault(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const utf8_step step = utf8_next(text.substr(at));
    if (step.kind != utf8_kind::whole) {
      break;
    }
    at += step.bytes;
  }
  return at;
}

}  // namespace eldr::gpu
