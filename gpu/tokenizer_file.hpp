#pragma once
/// What a tokenizer.json says, checked and in plain types.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::gpu {

struct tokenizer_file {
  struct added_token {
    token_id id;
    std::string content;
    bool special;
    bool normalized;
  };
  struct split_pattern {
    std::string pattern;
    bool literal;
  };

  std::vector<std::pair<std::string, token_id>> vocab;  ///< Tokens as they are written in the file.
  std::vector<std::pair<std::string, std::string>> merges;  ///< By rank.
  std::vector<added_token> added;
  std::vector<split_pattern> splits;  ///< In order of use.
  bool nfc = false;
  std::vector<token_id> before;  ///< Special tokens that go before a text,
  std::vector<token_id> after;   ///< and after it.
};

/// Throws std::runtime_error that names what is malformed or not supported.
tokenizer_file parse_tokenizer_file(std::string_view json);

}  // namespace eldr::gpu
