#pragma once
/// Text to token ids and back: byte-level BPE as Hugging Face's tokenizer.json describes it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::gpu {

/// Const and thread-safe once constructed.
class tokenizer {
 public:
  /// Longest text that encode() takes.
  static constexpr std::size_t text_bytes_max = std::size_t{16} << 20;

  /// Parses tokenizer.json. Throws std::runtime_error that names what is malformed or not
  /// supported: models other than BPE, normalizers other than NFC, pre-tokenizers other than Split
  /// (isolated) and ByteLevel, post-processors other than TemplateProcessing and ByteLevel, tokens
  /// that strip or need word boundaries, and so on.
  explicit tokenizer(std::string_view json);
  ~tokenizer();
  tokenizer(tokenizer&&) noexcept;
  tokenizer& operator=(tokenizer&&) noexcept;

  /// Ids of `text`, with the template's special tokens (such as bos) around them if
  /// `add_special`. Added tokens that are written out in the text become their ids, as in
  /// Hugging Face's library. Throws std::runtime_error if the text is not valid UTF-8, too long,
  /// or would have to be changed by NFC where the tokenizer asks for that.
  std::vector<token_id> encode(std::string_view text, bool add_special = true) const;

  /// Bytes of one token; empty for special tokens and for ids that are not in the vocabulary.
  /// Bytes of a character may be spread over several tokens: see text_stream.
  std::string_view bytes_of(token_id id) const noexcept;

  /// Concatenation of bytes_of().
  std::string decode(const std::vector<token_id>& ids) const;

  /// One above the highest id.
  std::uint32_t vocab_size() const noexcept;

 private:
  struct impl;
  std::unique_ptr<const impl> impl_;
};

}  // namespace eldr::gpu
