#include "gpu/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "gpu/added_tokens.hpp"
#include "gpu/byte_level.hpp"
#include "gpu/byte_pair.hpp"
#include "gpu/split_regex.hpp"
#include "gpu/tokenizer_file.hpp"

namespace eldr::gpu {

namespace {

/// Matches every character that NFC may change or join with its neighbours: marks, conjoining
/// Hangul letters, and characters with a canonical decomposition that is not undone. Wider than
/// need be, so it also refuses some text that NFC would leave alone; composed text in most scripts
/// passes.
constexpr const char* nfc_suspects =
    R"([\p{M}\x{374}\x{37E}\x{387}\x{958}-\x{95F}\x{9DC}-\x{9DF}\x{A33}-\x{A36}\x{A59}-\x{A5E})"
    R"(\x{B5C}\x{B5D}\x{F43}-\x{F69}\x{1161}-\x{1175}\x{11A8}-\x{11C2}\x{1F71}-\x{1FFD})"
    R"(\x{2000}\x{2001}\x{2126}\x{212A}\x{212B}\x{2329}\x{232A}\x{2ADC}\x{F900}-\x{FAFF})"
    R"(\x{FB1D}-\x{FB4E}\x{1D15E}-\x{1D164}\x{1D1BB}-\x{1D1C0}\x{2F800}-\x{2FA1F}])";

using ids_by_token = std::unordered_map<std::string_view, token_id>;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("tokenizer.json: " + what);
}

byte_pair_encoder make_byte_pairs(const tokenizer_file& file, const ids_by_token& ids) {
  std::array<token_id, 256> byte_tokens{};
  std::size_t found = 0;
  for (const auto& [token, id] : file.vocab) {
    const auto bytes = byte_level_decode(token);
    if (bytes && bytes->size() == 1) {
      byte_tokens[static_cast<unsigned char>(bytes->front())] = id;
      ++found;
    }
  }
  if (found != byte_tokens.size()) {
    fail(fmt::format("the vocabulary has tokens for {} of the 256 bytes.", found));
  }
  byte_pair_encoder pairs(byte_tokens);
  for (const auto& [left, right] : file.merges) {
    const std::string merged = left + right;
    const auto l = ids.find(left), r = ids.find(right), m = ids.find(merged);
    if (l == ids.end() || r == ids.end() || m == ids.end()) {
      fail(fmt::format("the merge of {} and {} needs a token that is not in the vocabulary.", left,
                       right));
    }
    pairs.add_merge(l->second, r->second, m->second);
  }
  return pairs;
}

ids_by_token index_vocab(const tokenizer_file& file) {
  ids_by_token ids;
  for (const auto& [token, id] : file.vocab) {
    ids.emplace(token, id);
  }
  return ids;
}

std::vector<split_regex> compile(const std::vector<tokenizer_file::split_pattern>& splits) {
  std::vector<split_regex> result;
  for (const auto& split : splits) {
    result.emplace_back(split.pattern,
                        split.literal ? split_regex::syntax::literal : split_regex::syntax::regex);
  }
  return result;
}

/// Bytes of all tokens in one string; a token without bytes, and an id without token, are empty.
class token_bytes {
 public:
  explicit token_bytes(const tokenizer_file& file) {
    std::vector<std::optional<std::string>> tokens;
    const auto slot = [&](token_id id) -> std::optional<std::string>& {
      tokens.resize(std::max<std::size_t>(tokens.size(), id + std::size_t{1}));
      return tokens[id];
    };
    for (const auto& [token, id] : file.vocab) {
      if (slot(id)) {
        fail(fmt::format("two tokens have the id {}.", id));
      }
      slot(id) = byte_level_decode(token).value_or(token);
    }
    for (const auto& token : file.added) {
      slot(token.id) = token.special ? "" : token.content;
    }
    for (const auto& token : tokens) {
      all_ += token.value_or("");
      ends_.push_back(all_.size());
    }
  }

  std::string_view operator[](token_id id) const noexcept {
    if (id >= ends_.size()) {
      return {};
    }
    const std::size_t begin = id == 0 ? 0 : ends_[id - 1];
    return {all_.data() + begin, ends_[id] - begin};
  }

  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(ends_.size()); }

 private:
  std::string all_;
  std::vector<std::size_t> ends_;
};

}  // namespace

struct tokenizer::impl {
  explicit impl(const tokenizer_file& file)
      : pairs(make_byte_pairs(file, index_vocab(file))),
        splits(compile(file.splits)),
        bytes(file),
        before(file.before),
        after(file.after) {
    if (file.nfc) {
      nfc_check.emplace(nfc_suspects);
    }
    for (const auto& token : file.added) {
      (token.normalized ? normalized_tokens : raw_tokens).add(token.content, token.id);
    }
  }

  void check(std::string_view text) const {
    if (text.size() > text_bytes_max) {
      throw std::runtime_error(fmt::format("The text has {} bytes; the longest possible has {}.",
                                           text.size(), text_bytes_max));
    }
    if (const std::size_t fault = utf8_fault(text); fault != text.size()) {
      throw std::runtime_error(
          fmt::format("The text is not valid UTF-8 at byte {}; convert it first.", fault));
    }
  }

  /// Ids of text around and within which added tokens are looked for: first those that match the
  /// text as given, then, in what is left, those that match normalized text.
  void encode_text(std::string_view text, byte_pair_encoder::workspace& space,
                   std::vector<token_id>& ids) const {
    for_parts(raw_tokens, text, ids, [&](std::string_view part) {
      if (nfc_check && nfc_check->found_in(part)) {
        throw std::runtime_error(
            "The text has combining or compatibility characters, and this model's tokenizer needs "
            "NFC normalization, which is not built in; normalize the text first.");
      }
      for_parts(normalized_tokens, part, ids,
                [&](std::string_view rest) { encode_part(rest, space, ids); });
    });
  }

  template <typename Encode>
  static void for_parts(const added_tokens& tokens, std::string_view text,
                        std::vector<token_id>& ids, Encode encode) {
    std::size_t begin = 0;
    while (begin < text.size()) {
      const auto found = tokens.find(text, begin);
      if (found.at > begin) {
        encode(text.substr(begin, found.at - begin));
      }
      if (found.bytes > 0) {
        ids.push_back(found.id);
      }
      begin = found.at + found.bytes;
    }
  }

  void encode_part(std::string_view text, byte_pair_encoder::workspace& space,
                   std::vector<token_id>& ids) const {
    std::vector<std::string_view> pieces{text};
    std::vector<std::string_view> finer;
    for (const split_regex& split : splits) {
      finer.clear();
      for (const std::string_view piece : pieces) {
        split.split(piece, finer);
      }
      std::swap(pieces, finer);
    }
    for (const std::string_view piece : pieces) {
      pairs.encode(piece, space, ids);
    }
  }

  byte_pair_encoder pairs;
  std::vector<split_regex> splits;
  token_bytes bytes;
  std::vector<token_id> before;
  std::vector<token_id> after;
  added_tokens raw_tokens;
  added_tokens normalized_tokens;
  std::optional<split_regex> nfc_check;
};

tokenizer::tokenizer(std::string_view json)
    : impl_(std::make_unique<impl>(parse_tokenizer_file(json))) {}
tokenizer::~tokenizer() = default;
tokenizer::tokenizer(tokenizer&&) noexcept = default;
tokenizer& tokenizer::operator=(tokenizer&&) noexcept = default;

std::vector<token_id> tokenizer::encode(std::string_view text, bool add_special) const {
  impl_->check(text);
  std::vector<token_id> ids;
  if (add_special) {
    ids = impl_->before;
  }
  byte_pair_encoder::workspace space;
  impl_->encode_text(text, space, ids);
  if (add_special) {
    ids.insert(ids.end(), impl_->after.begin(), impl_->after.end());
  }
  return ids;
}

std::string_view tokenizer::bytes_of(token_id id) const noexcept {
  return impl_->bytes[id];
}

std::string tokenizer::decode(const std::vector<token_id>& ids) const {
  std::string text;
  for (const token_id id : ids) {
    text += bytes_of(id);
  }
  return text;
}

std::uint32_t tokenizer::vocab_size() const noexcept {
  return impl_->bytes.size();
}

}  // namespace eldr::gpu
