#pragma once
/// A regular expression that cuts text into pieces, as the Split pre-tokenizer does.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace eldr::gpu {

/// Const and thread-safe once constructed.
class split_regex {
 public:
  enum class syntax { regex, literal };

  /// `pattern` is in PCRE2's syntax; \uHHHH is understood too. Throws std::runtime_error that
  /// quotes the pattern if PCRE2 cannot compile it.
  explicit split_regex(const std::string& pattern, syntax kind = syntax::regex);
  ~split_regex();
  split_regex(split_regex&&) noexcept;
  split_regex& operator=(split_regex&&) noexcept;

  /// Appends all of `text` to `pieces`: each match is a piece, and so is what lies between two of
  /// them ("isolated"). `text` must be valid UTF-8. Throws std::runtime_error if the match takes
  /// too much effort.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

  /// Does the pattern match anywhere?
  bool found_in(std::string_view text) const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace eldr::gpu
