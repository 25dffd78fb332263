#pragma once
/// Suggestions for mistyped words.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace eldr::cluster {

/// Edits (insert, delete, replace, swap of neighbours; each counts 1) that turn `a` into `b`.
/// Optimal string alignment distance.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the fewest edits, the first of equals; none if even that one differs in more
/// than a third of its letters (two edits are always allowed), since it would only mislead.
std::optional<std::string_view> nearest(std::string_view word,
                                        std::span<const std::string_view> candidates);

/// `word` in quotes for an error message: cut to 60 bytes, control characters shown as '?'.
std::string in_quotes(std::string_view word);

}  // namespace eldr::cluster
