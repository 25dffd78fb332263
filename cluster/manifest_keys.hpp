#pragma once
/// The one table of the manifest's keys: reading, suggestions, printing and the reference in
/// docs/manifest.md all come from it.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "cluster/manifest.hpp"

namespace eldr::cluster {

struct number_value {
  std::uint32_t& (*at)(manifest&);
  std::uint32_t min;
  std::uint32_t max;
  std::string_view unit;  ///< Empty for plain counts.
};
struct seed_value {
  std::uint64_t& (*at)(manifest&);
};
struct fraction_value {
  float& (*at)(manifest&);
  float min;
  float max;
};
struct flag_value {
  bool& (*at)(manifest&);
};
struct text_value {
  std::string& (*at)(manifest&);
  std::string_view meaning;  ///< What kind of text, for the reference.
};
/// One of a list of words.
struct choice_value {
  std::span<const std::string_view> words;
  std::string_view (*get)(const manifest&);
  void (*set)(manifest&, std::string_view);
};

struct manifest_key {
  std::string_view path;  ///< "timeouts.lease_ms", or "name" at the top.
  std::variant<number_value, seed_value, fraction_value, flag_value, text_value, choice_value>
      value;
  std::string_view description;

  std::string_view section() const;  ///< "timeouts", or empty.
  std::string_view leaf() const;     ///< "lease_ms".
};

/// A key of an element of `nodes`.
struct node_key {
  std::string_view name;
  std::string_view values;
  std::string_view default_text;
  std::string_view description;
};

/// In the order in which they are printed: top level first, then section by section.
std::span<const manifest_key> manifest_keys();
std::span<const node_key> node_keys();
std::span<const std::string_view> role_words();

/// The value of a key as the manifest would spell it.
std::string value_text(const manifest_key&, const manifest&);

/// Tables of all keys in Markdown: what docs/manifest.md contains word for word.
std::string key_reference();

}  // namespace eldr::cluster
