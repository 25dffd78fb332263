#include "cluster/nearest.hpp"

#include <algorithm>
#include <vector>

namespace eldr::cluster {
namespace {

// Bounds the quadratic work on hostile input; no known word is nearly as long.
constexpr std::size_t word_bytes_max = 128;

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> two_back(b.size() + 1);
  std::vector<std::size_t> previous(b.size() + 1);
  std::vector<std::size_t> current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    previous[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], two_back[j - 2] + 1);
      }
    }
    std::swap(two_back, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::optional<std::string_view> nearest(std::string_view word,
                                        std::span<const std::string_view> candidates) {
  std::optional<std::string_view> best;
  std::size_t best_edits = 0;
  if (word.size() > word_bytes_max) {
    return best;
  }
  for (const std::string_view candidate : candidates) {
    const std::size_t edits = edit_distance(word, candidate);
    const std::size_t allowed = std::max<std::size_t>(2, candidate.size() / 3);
    // An edit of every letter is no likeness ("rr" is two edits from "xy").
    if (edits > allowed || edits >= std::max(word.size(), candidate.size())) {
      continue;
    }
    if (!best || edits < best_edits) {
      best = candidate;
      best_edits = edits;
    }
  }
  return best;
}

std::string in_quotes(std::string_view word) {
  constexpr std::size_t shown_bytes_max = 60;
  std::string text = "'";
  for (const char c : word.substr(0, shown_bytes_max)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  text += word.size() > shown_bytes_max ? "...'" : "'";
  return text;
}

}  // namespace eldr::cluster
