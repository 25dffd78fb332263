#include "gpu/text_stream.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "gpu/model_files.hpp"

namespace {

using eldr::gpu::utf8_fault;
using eldr::gpu::utf8_stream;

/// All of `bytes` at once.
std::string repaired(std::string_view bytes) {
  utf8_stream stream;
  std::string text = stream.feed(bytes);
  return text + stream.flush();
}

const std::string fffd = "\xEF\xBF\xBD";

TEST(utf8_stream, characters_come_whole) {
  utf8_stream stream;
  EXPECT_EQ(stream.feed("a\xE2"), "a");
  EXPECT_EQ(stream.feed("\x82"), "");
  EXPECT_EQ(stream.feed("\xAC!\xF0\x9F\x98"), "\xE2\x82\xAC!");
  EXPECT_EQ(stream.feed("\x80"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.flush(), "");
}

TEST(utf8_stream, an_incomplete_tail_is_replaced_at_the_end) {
  utf8_stream stream;
  EXPECT_EQ(stream.feed("x\xE2\x82"), "x");
  EXPECT_EQ(stream.flush(), fffd);
  EXPECT_EQ(stream.feed("y"), "y");
  EXPECT_EQ(stream.flush(), "");
}

// The examples of "U+FFFD substitution of maximal subparts" in the Unicode standard, 3.9.
TEST(utf8_stream, invalid_bytes_are_replaced_as_unicode_recommends) {
  EXPECT_EQ(repaired("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            fffd + fffd + fffd + fffd + fffd + fffd + fffd + fffd + "A");
  EXPECT_EQ(repaired("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            fffd + fffd + fffd + fffd + fffd + fffd + fffd + fffd + "A");
  EXPECT_EQ(repaired("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            fffd + fffd + fffd + fffd + fffd + "A" + fffd + fffd + "B");
  EXPECT_EQ(repaired("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), fffd + fffd + fffd + fffd + "A");
}

TEST(utf8_stream, the_text_does_not_depend_on_how_it_was_cut) {
  std::mt19937_64 random(2);
  const std::vector<std::string> parts{"a",        "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                       "\xE2\x82", "\xFF",     "\x80",         "\xF0\x9F"};
  for (int i = 0; i < 2000; ++i) {
    std::string bytes;
    for (std::uint64_t n = random() % 12; n > 0; --n) {
      bytes += parts[random() % parts.size()];
    }
    utf8_stream stream;
    std::string text;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t n = 1 + random() % 4;
      const std::string piece = stream.feed(std::string_view(bytes).substr(at, n));
      ASSERT_EQ(utf8_fault(piece), piece.size());
      text += piece;
      at += n;
    }
    ASSERT_EQ(text + stream.flush(), repaired(bytes));
  }
}

TEST(utf8, every_code_point_is_read_back) {
  for (char32_t code = 0; code < 0x11'0000; ++code) {
    std::string text;
    if (code < 0x80) {
      text = {static_cast<char>(code)};
    } else if (code < 0x800) {
      text = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else if (code < 0x1'0000) {
      text = {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
              static_cast<char>(0x80 | (code & 63))};
    } else {
      text = {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
              static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
    const auto step = eldr::gpu::utf8_next(text);
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    ASSERT_EQ(step.kind == eldr::gpu::utf8_kind::whole, !surrogate) << std::hex << +code;
    if (!surrogate) {
      ASSERT_EQ(step.code, code);
      ASSERT_EQ(step.bytes, text.size());
    }
  }
}

TEST(text_stream, tokens_that_split_a_character_are_joined) {
  const eldr::gpu::tokenizer tokens(eldr::gpu::open_model("")->tokenizer_json());
  const std::string text = "na\xC3\xAFve \xF0\x9F\x98\x80 \xE6\x97\xA5\xE6\x9C\xAC!";
  eldr::gpu::text_stream stream(tokens);
  std::string out;
  for (const auto id : tokens.encode(text)) {
    const std::string piece = stream.feed(id);
    ASSERT_EQ(utf8_fault(piece), piece.size());
    out += piece;
  }
  EXPECT_EQ(out + stream.flush(), text);
}

}  // namespace
