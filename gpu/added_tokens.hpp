#pragma once
/// Tokens that are found in text as they are written, before it is split.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::gpu {

/// Finds the leftmost occurrence of any token, of those the longest.
class added_tokens {
 public:
  struct found {
    std::size_t at;
    std::size_t bytes;
    token_id id;
  };

  /// `content` is not empty.
  void add(std::string content, token_id id) {
    auto& bucket = by_first_byte_[static_cast<unsigned char>(content[0])];
    const auto shorter = std::ranges::find_if(
        bucket, [&](const token& other) { return other.content.size() < content.size(); });
    bucket.insert(shorter, {std::move(content), id});
  }

  /// First occurrence at or after `from`; bytes = 0 if there is none.
  found find(std::string_view text, std::size_t from) const {
    for (std::size_t at = from; at < text.size(); ++at) {
      for (const token& t : by_first_byte_[static_cast<unsigned char>(text[at])]) {
        if (text.substr(at).starts_with(t.content)) {
          return {at, t.content.size(), t.id};
        }
      }
    }
    return {text.size(), 0, 0};
  }

 private:
  struct token {
    std::string content;
    token_id id;
  };

  std::array<std::vector<token>, 256> by_first_byte_;  ///< Longest first.
};

}  // namespace eldr::gpu
