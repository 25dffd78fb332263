#include "gpu/byte_pair.hpp"

#include <algorithm>
#include <tuple>

namespace eldr::gpu {

namespace {

constexpr std::uint32_t none = 0xFFFF'FFFF;
constexpr token_id dead = 0xFFFF'FFFF;  ///< A symbol that was joined to the one before it.

/// For a heap with the lowest rank, then the leftmost place, on top.
constexpr auto later = [](const auto& a, const auto& b) {
  return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
};

}  // namespace

void byte_pair_encoder::add_merge(token_id left, token_id right, token_id merged) {
  merges_[key_of(left, right)] = {next_rank_++, merged};
}

void byte_pair_encoder::offer(std::uint32_t at, workspace& space) const {
  const std::uint32_t next = space.symbols_[at].next;
  if (next == none) {
    return;
  }
  const token_id left = space.symbols_[at].token;
  const token_id right = space.symbols_[next].token;
  const auto found = merges_.find(key_of(left, right));
  if (found != merges_.end()) {
    space.heap_.push_back({found->second.rank, at, left, right, found->second.merged});
    std::push_heap(space.heap_.begin(), space.heap_.end(), later);
  }
}

void byte_pair_encoder::load(std::string_view piece, workspace& space) const {
  const auto count = static_cast<std::uint32_t>(piece.size());
  space.symbols_.clear();
  space.heap_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    space.symbols_.push_back({byte_tokens_[static_cast<unsigned char>(piece[i])],
                              i == 0 ? none : i - 1, i + 1 == count ? none : i + 1});
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    offer(i, space);
  }
}

void byte_pair_encoder::encode(std::string_view piece, workspace& space,
                               std::vector<token_id>& tokens) const {
  load(piece, space);
  auto& symbols = space.symbols_;
  while (!space.heap_.empty()) {
    std::pop_heap(space.heap_.begin(), space.heap_.end(), later);
    const auto best = space.heap_.back();
    space.heap_.pop_back();
    auto& left = symbols[best.at];
    // One of the two may have been joined to another symbol since the pair was queued.
    if (left.token != best.left || left.next == none || symbols[left.next].token != best.right) {
      continue;
    }
    auto& right = symbols[left.next];
    left.token = best.merged;
    left.next = right.next;
    right.token = dead;
    if (left.next != none) {
      symbols[left.next].previous = best.at;
    }
    offer(best.at, space);
    if (left.previous != none) {
      offer(left.previous, space);
    }
  }
  for (const auto& symbol : symbols) {
    if (symbol.token != dead) {
      tokens.push_back(symbol.token);
    }
  }
}

}  // namespace eldr::gpu
