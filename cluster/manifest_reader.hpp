#pragma once
/// From YAML text to a manifest. Internal to manifest.cpp and its tests.

#include <yaml-cpp/yaml.h>

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "cluster/manifest.hpp"
#include "cluster/manifest_keys.hpp"

namespace eldr::cluster {

/// Fills a manifest from a YAML tree and checks it. Every fault ends in fail(), which throws.
class manifest_reader {
 public:
  /// `source`: the file's name as messages show it.
  explicit manifest_reader(std::string source) : source_(std::move(source)) {}

  manifest read(const std::string& text);

 private:
  void read_map(const YAML::Node& map, std::string_view section);
  void read_entry(std::string_view section, const std::string& name, const YAML::Mark& mark,
                  const YAML::Node& value);
  void read_value(const manifest_key& key, const YAML::Node& value);
  void read_nodes(const YAML::Node& list);
  /// An element of `nodes` under construction.
  struct node_draft {
    node_spec node;
    std::uint32_t count = 0;  ///< 0: not given.
  };
  void read_node(const YAML::Node& entry);
  void read_node_key(const std::string& name, const YAML::Mark& mark, const YAML::Node& value,
                     node_draft& draft);
  void add_nodes(const node_draft& draft, const YAML::Mark& mark);
  void add_node(node_spec node, const YAML::Mark& mark);
  void read_listen(const YAML::Node& value, node_spec& node);
  std::vector<std::uint32_t> read_cores(const YAML::Node& value);

  void check_names() const;
  void check_roles() const;
  void check_relations() const;

  std::uint64_t number(const YAML::Node& value, std::string_view key, std::uint64_t min,
                       std::uint64_t max, std::string_view unit = "") const;
  float fraction(const YAML::Node& value, std::string_view key, float min, float max) const;
  bool flag(const YAML::Node& value, std::string_view key) const;
  std::string word(const YAML::Node& value, std::string_view key,
                   std::span<const std::string_view> words) const;
  std::string text(const YAML::Node& value, std::string_view key) const;

  [[noreturn]] void fail_unknown_key(std::string_view section, const std::string& name,
                                     const YAML::Mark& mark) const;
  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& sentence) const;
  /// Where a key was given, or nowhere if its default holds.
  YAML::Mark mark_of(std::string_view path) const;

  std::string source_;
  manifest result_;
  std::map<std::string, YAML::Mark, std::less<>> given_;       ///< By path.
  std::map<std::string, std::string, std::less<>> addresses_;  ///< Address to node name.
};

}  // namespace eldr::cluster
