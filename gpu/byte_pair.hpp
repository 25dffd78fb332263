#pragma once
/// Byte-pair encoding of one piece of text.

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::gpu {

/// Starts from one token per byte and joins, again and again, the adjacent pair of lowest rank (the
/// leftmost of equal ones). O(n log n) for n bytes, whatever the text.
class byte_pair_encoder {
 public:
  /// Buffers of encode(), kept by the caller so that they are allocated once per text.
  class workspace;

  /// `byte_tokens`: the token of each single byte.
  explicit byte_pair_encoder(const std::array<token_id, 256>& byte_tokens)
      : byte_tokens_(byte_tokens) {}

  /// Pairs get their ranks in the order of these calls; adding one again moves it to the end.
  void add_merge(token_id left, token_id right, token_id merged);

  /// Appends the tokens of `piece` (less than 2^32 bytes).
  void encode(std::string_view piece, workspace& space, std::vector<token_id>& tokens) const;

 private:
  struct merge {
    std::uint32_t rank;
    token_id merged;
  };

  static std::uint64_t key_of(token_id left, token_id right) {
    return std::uint64_t{left} << 32 | right;
  }
  /// Queues the merge of the symbol at `at` with the one after it, if there is one.
  void offer(std::uint32_t at, workspace& space) const;
  void load(std::string_view piece, workspace& space) const;

  std::array<token_id, 256> byte_tokens_;
  std::unordered_map<std::uint64_t, merge> merges_;
  std::uint32_t next_rank_ = 0;
};

class byte_pair_encoder::workspace {
 private:
  friend class byte_pair_encoder;

  /// A token of the piece so far; a doubly linked list in an array.
  struct symbol {
    token_id token;
    std::uint32_t previous;
    std::uint32_t next;
  };
  struct candidate {
    std::uint32_t rank;
    std::uint32_t at;
    token_id left;
    token_id right;
    token_id merged;
  };

  std::vector<symbol> symbols_;
  std::vector<candidate> heap_;
};

}  // namespace eldr::gpu
