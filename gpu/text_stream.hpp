#pragma once
/// Text out of a stream of tokens, without ever splitting a character.

#include <string>
#include <string_view>

#include "gpu/tokenizer.hpp"
#include "gpu/utf8.hpp"

namespace eldr::gpu {

/// Takes bytes as they come and gives valid UTF-8: an incomplete character is held back (3 bytes at
/// most), and bytes that cannot be part of one become U+FFFD.
class utf8_stream {
 public:
  /// Text that became certain with `bytes`; often empty.
  std::string feed(std::string_view bytes) {
    held_ += bytes;
    std::string text;
    std::string_view rest = held_;
    while (!rest.empty()) {
      const utf8_step step = utf8_next(rest);
      if (step.kind == utf8_kind::cut_off) {
        break;
      }
      text += step.kind == utf8_kind::whole ? rest.substr(0, step.bytes) : replacement;
      rest.remove_prefix(step.bytes);
    }
    held_.erase(0, held_.size() - rest.size());
    return text;
  }

  /// The end of the text: U+FFFD if a character is incomplete, else nothing. Ready for a new text.
  std::string flush() {
    const bool incomplete = !held_.empty();
    held_.clear();
    return std::string(incomplete ? replacement : "");
  }

 private:
  static constexpr std::string_view replacement = "\xEF\xBF\xBD";

  std::string held_;
};

/// The same for token ids. The tokenizer must outlive it.
class text_stream {
 public:
  explicit text_stream(const tokenizer& tokens) : tokens_(&tokens) {}

  std::string feed(token_id id) { return bytes_.feed(tokens_->bytes_of(id)); }
  std::string flush() { return bytes_.flush(); }

 private:
  const tokenizer* tokens_;
  utf8_stream bytes_;
};

}  // namespace eldr::gpu
