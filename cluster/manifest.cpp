#include "cluster/manifest.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "cluster/manifest_keys.hpp"
#include "cluster/manifest_reader.hpp"
#include "cluster/nearest.hpp"

namespace eldr::cluster {
namespace {

constexpr std::size_t manifest_bytes_max = 1u << 20;
constexpr std::string_view embedded_model = "tiny-moe";

void emit_scalars(YAML::Emitter& out, const manifest& m) {
  std::string_view section;
  for (const manifest_key& key : manifest_keys()) {
    if (key.section() != section) {
      if (!section.empty()) {
        out << YAML::EndMap;
      }
      section = key.section();
      out << YAML::Key << std::string(section) << YAML::Value << YAML::BeginMap;
    }
    out << YAML::Key << std::string(key.leaf()) << YAML::Value << value_text(key, m);
  }
  if (!section.empty()) {
    out << YAML::EndMap;
  }
}

void emit_node(YAML::Emitter& out, const node_spec& node) {
  out << YAML::BeginMap;
  out << YAML::Key << "name" << YAML::Value << node.name;
  out << YAML::Key << "role" << YAML::Value << std::string(to_string(node.role));
  out << YAML::Key << "listen" << YAML::Value << node.address();
  if (!node.cores.empty()) {
    out << YAML::Key << "cores" << YAML::Value << YAML::Flow << node.cores;
  }
  out << YAML::EndMap;
}

std::string read_text(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw manifest_error(
        fmt::format("{}: this is a folder; name the manifest's file", path.string()));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(manifest_bytes_max + 1, '\0');
  if (!file || (file.read(text.data(), static_cast<std::streamsize>(text.size())), file.bad())) {
    throw manifest_error(fmt::format("{}: cannot read the manifest: {}", path.string(),
                                     errno != 0 ? std::strerror(errno) : "read error"));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > manifest_bytes_max) {
    throw manifest_error(
        fmt::format("{}: a manifest of more than 1 MiB is not accepted; is this "
                    "the right file?",
                    path.string()));
  }
  return text;
}

}  // namespace

std::string_view to_string(node_role role) noexcept {
  return role_words()[static_cast<std::size_t>(role)];
}

std::string node_spec::address() const {
  return fmt::format("{}:{}", host, port);
}

const node_spec* manifest::find(std::string_view node_name) const noexcept {
  const auto found = std::ranges::find(nodes, node_name, &node_spec::name);
  return found == nodes.end() ? nullptr : &*found;
}

const node_spec& manifest::require(std::string_view node_name) const {
  if (const node_spec* node = find(node_name)) {
    return *node;
  }
  std::vector<std::string_view> names;
  std::ranges::transform(nodes, std::back_inserter(names), &node_spec::name);
  const auto guess = nearest(node_name, names);
  throw manifest_error(fmt::format(
      "the manifest has no node {}{}", in_quotes(node_name),
      guess ? fmt::format("; did you mean '{}'?", *guess)
            : fmt::format("; its first node is '{}'", names.empty() ? "" : names.front())));
}

std::vector<const node_spec*> manifest::with_role(node_role role) const {
  std::vector<const node_spec*> found;
  for (const node_spec& node : nodes) {
    if (node.role == role) {
      found.push_back(&node);
    }
  }
  return found;
}

std::optional<std::filesystem::path> manifest::model_path() const {
  if (model == embedded_model) {
    return std::nullopt;
  }
  return folder / model;
}

manifest load_manifest(const std::filesystem::path& path) {
  return parse_manifest(read_text(path), path);
}

manifest parse_manifest(const std::string& text, const std::filesystem::path& source) {
  manifest result = manifest_reader(source.string()).read(text);
  result.folder = source.parent_path();
  return result;
}

std::string to_yaml(const manifest& m) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  emit_scalars(out, m);
  out << YAML::Key << "nodes" << YAML::Value << YAML::BeginSeq;
  for (const node_spec& node : m.nodes) {
    emit_node(out, node);
  }
  out << YAML::EndSeq << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace eldr::cluster
