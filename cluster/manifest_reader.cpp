#include "cluster/manifest_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "cluster/nearest.hpp"

namespace eldr::cluster {
namespace {

constexpr std::size_t nodes_max = 1024;
constexpr std::size_t text_bytes_max = 4096;
constexpr std::uint32_t cpu_max = 4095;

template <class Integer>
std::optional<Integer> decimal(std::string_view text) {
  Integer value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

bool only(std::string_view text, std::string_view allowed) {
  return text.find_first_not_of(allowed) == std::string_view::npos;
}

constexpr std::string_view lower_digits = "abcdefghijklmnopqrstuvwxyz0123456789";

std::string all_letters_digits() {
  return std::string(lower_digits) + "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
}

const manifest_key* find_key(std::string_view section, std::string_view leaf) {
  for (const manifest_key& key : manifest_keys()) {
    if (key.section() == section && key.leaf() == leaf) {
      return &key;
    }
  }
  return nullptr;
}

/// What may stand in a section, or with an empty name at the top, sections included.
std::vector<std::string_view> names_in(std::string_view section) {
  std::vector<std::string_view> names;
  for (const manifest_key& key : manifest_keys()) {
    if (key.section() == section) {
      names.push_back(key.leaf());
    } else if (section.empty() && (names.empty() || names.back() != key.section())) {
      names.push_back(key.section());
    }
  }
  if (section.empty()) {
    names.push_back("nodes");
  }
  return names;
}

bool is_section(std::string_view name) {
  return std::ranges::any_of(manifest_keys(),
                             [&](const manifest_key& key) { return key.section() == name; });
}

std::string path_of(std::string_view section, std::string_view leaf) {
  return section.empty() ? std::string(leaf) : fmt::format("{}.{}", section, leaf);
}

std::string kind_of(const YAML::Node& value) {
  switch (value.Type()) {
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Map:
      return "a mapping";
    case YAML::NodeType::Scalar:
      return in_quotes(value.Scalar());
    default:
      return "nothing";
  }
}

/// For a key that resembles none of its section: perhaps the right word in the wrong place.
std::string hint_elsewhere(std::string_view name, std::span<const std::string_view> here) {
  std::vector<std::string_view> leaves;
  for (const manifest_key& key : manifest_keys()) {
    if (key.path == name) {
      return fmt::format("write '{}' in a section '{}:'", key.leaf(), key.section());
    }
    leaves.push_back(key.leaf());
  }
  if (const auto guess = nearest(name, leaves)) {
    const auto at = std::ranges::find(leaves, *guess) - leaves.begin();
    return fmt::format("did you mean '{}'?", manifest_keys()[static_cast<std::size_t>(at)].path);
  }
  return fmt::format("known here are {}", fmt::join(here, ", "));
}

bool names_every_interface(std::string_view host) {
  return host == "0.0.0.0" || host == "*" || host.empty();
}

}  // namespace

manifest manifest_reader::read(const std::string& text) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.empty() || documents.front().IsNull()) {
      fail(YAML::Mark::null_mark(), "the manifest is empty; at least 'nodes' is needed");
    }
    if (documents.size() > 1) {
      fail(documents[1].Mark(), "a manifest is one YAML document; remove what follows '---'");
    }
    read_map(documents.front(), "");
  } catch (const YAML::Exception& e) {
    fail(e.mark, "this is not valid YAML: " + e.msg);
  }
  check_names();
  check_roles();
  check_relations();
  return std::move(result_);
}

void manifest_reader::read_map(const YAML::Node& map, std::string_view section) {
  if (!map.IsMap()) {
    fail(map.Mark(), fmt::format("{} must be a mapping with keys such as '{}', but is {}",
                                 section.empty() ? "the manifest" : in_quotes(section),
                                 names_in(section).front(), kind_of(map)));
  }
  for (const auto& entry : map) {
    read_entry(section, text(entry.first, "a key"), entry.first.Mark(), entry.second);
  }
}

void manifest_reader::read_entry(std::string_view section, const std::string& name,
                                 const YAML::Mark& mark, const YAML::Node& value) {
  const std::string path = path_of(section, name);
  if (!given_.emplace(path, mark).second) {
    fail(mark, fmt::format("{} is given twice; remove one", in_quotes(path)));
  }
  if (const manifest_key* key = find_key(section, name)) {
    read_value(*key, value);
  } else if (section.empty() && name == "nodes") {
    read_nodes(value);
  } else if (section.empty() && is_section(name)) {
    // A section whose keys are all commented out keeps its defaults.
    if (!value.IsNull()) {
      read_map(value, name);
    }
  } else {
    fail_unknown_key(section, name, mark);
  }
}

void manifest_reader::read_value(const manifest_key& key, const YAML::Node& value) {
  if (const auto* n = std::get_if<number_value>(&key.value)) {
    n->at(result_) = static_cast<std::uint32_t>(number(value, key.path, n->min, n->max, n->unit));
  } else if (const auto* seed = std::get_if<seed_value>(&key.value)) {
    seed->at(result_) = number(value, key.path, 0, UINT64_MAX);
  } else if (const auto* real = std::get_if<fraction_value>(&key.value)) {
    real->at(result_) = fraction(value, key.path, real->min, real->max);
  } else if (const auto* f = std::get_if<flag_value>(&key.value)) {
    f->at(result_) = flag(value, key.path);
  } else if (const auto* t = std::get_if<text_value>(&key.value)) {
    t->at(result_) = text(value, key.path);
  } else if (const auto* choice = std::get_if<choice_value>(&key.value)) {
    choice->set(result_, word(value, key.path, choice->words));
  }
}

void manifest_reader::read_nodes(const YAML::Node& list) {
  if (!list.IsSequence()) {
    fail(list.Mark(),
         fmt::format("'nodes' must be a list with one element per node, but is {}", kind_of(list)));
  }
  for (const YAML::Node& entry : list) {
    read_node(entry);
  }
}

void manifest_reader::read_node(const YAML::Node& entry) {
  if (!entry.IsMap()) {
    fail(entry.Mark(), fmt::format("an element of 'nodes' must be a mapping with 'name', 'role' "
                                   "and 'listen', but is {}",
                                   kind_of(entry)));
  }
  node_draft draft;
  std::set<std::string, std::less<>> seen;
  for (const auto& item : entry) {
    const std::string name = text(item.first, "a key");
    if (!seen.insert(name).second) {
      fail(item.first.Mark(), fmt::format("{} is given twice for one node", in_quotes(name)));
    }
    read_node_key(name, item.first.Mark(), item.second, draft);
  }
  for (const std::string_view needed : {"name", "role", "listen"}) {
    if (!seen.contains(needed)) {
      fail(entry.Mark(), fmt::format("this node has no '{}'; add it", needed));
    }
  }
  if (draft.count == 0) {
    add_node(std::move(draft.node), entry.Mark());
  } else {
    add_nodes(draft, entry.Mark());
  }
}

void manifest_reader::read_node_key(const std::string& name, const YAML::Mark& mark,
                                    const YAML::Node& value, node_draft& draft) {
  if (name == "name") {
    draft.node.name = text(value, "nodes.name");
  } else if (name == "role") {
    const auto role = std::ranges::find(role_words(), word(value, "nodes.role", role_words()));
    draft.node.role = static_cast<node_role>(role - role_words().begin());
  } else if (name == "listen") {
    read_listen(value, draft.node);
  } else if (name == "count") {
    draft.count = static_cast<std::uint32_t>(number(value, "nodes.count", 1, nodes_max));
  } else if (name == "cores") {
    draft.node.cores = read_cores(value);
  } else {
    fail_unknown_key("nodes", name, mark);
  }
}

void manifest_reader::add_nodes(const node_draft& draft, const YAML::Mark& mark) {
  if (!draft.node.cores.empty()) {
    fail(mark,
         "'cores' cannot be shared by the nodes that 'count' makes; list the nodes one by "
         "one");
  }
  if (draft.node.port + draft.count - 1 > 65'535) {
    fail(mark, fmt::format("{} nodes from port {} on would need ports above 65535", draft.count,
                           draft.node.port));
  }
  for (std::uint32_t i = 0; i < draft.count; ++i) {
    node_spec one = draft.node;
    one.name += fmt::format("-{}", i + 1);
    one.port = static_cast<std::uint16_t>(draft.node.port + i);
    add_node(std::move(one), mark);
  }
}

void manifest_reader::add_node(node_spec node, const YAML::Mark& mark) {
  if (node.name.empty() || node.name.size() > 32 ||
      !only(node.name, std::string(lower_digits) + "-")) {
    fail(mark, fmt::format("{} cannot name a node; use 1 to 32 of a-z, 0-9 and '-'",
                           in_quotes(node.name)));
  }
  if (node.name.starts_with("client")) {
    fail(mark, fmt::format("node name {} is reserved: names that begin with 'client' belong to "
                           "commands that attach to the cluster",
                           in_quotes(node.name)));
  }
  if (result_.find(node.name) != nullptr) {
    fail(mark,
         fmt::format("node name {} is used twice; names must be unique", in_quotes(node.name)));
  }
  const auto [other, added] = addresses_.emplace(
      fmt::format("{}:{}", node.host == "localhost" ? "127.0.0.1" : node.host, node.port),
      node.name);
  if (!added) {
    fail(mark, fmt::format("nodes {} and {} both listen on {}; give each its own port",
                           in_quotes(other->second), in_quotes(node.name), node.address()));
  }
  if (result_.nodes.size() == nodes_max) {
    fail(mark, fmt::format("a cluster has at most {} nodes", nodes_max));
  }
  result_.nodes.push_back(std::move(node));
}

void manifest_reader::read_listen(const YAML::Node& value, node_spec& node) {
  const std::string address = text(value, "nodes.listen");
  const std::size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? address : address.substr(colon + 1);
  const std::optional<std::uint16_t> number = decimal<std::uint16_t>(port);
  if (!number || *number == 0) {
    fail(value.Mark(), fmt::format("'nodes.listen' must be host:port with a port of 1 to 65535, "
                                   "but is {}",
                                   in_quotes(address)));
  }
  node.port = *number;
  if (colon == std::string::npos) {
    return;
  }
  node.host = address.substr(0, colon);
  if (names_every_interface(node.host)) {
    fail(value.Mark(), fmt::format("'nodes.listen' is the address by which other nodes reach this "
                                   "one, so {} cannot serve; name one interface",
                                   in_quotes(address)));
  }
  if (node.host.size() > 253 || !only(node.host, all_letters_digits() + ".-")) {
    fail(value.Mark(),
         fmt::format("the host of {} must be an IPv4 address or a host name", in_quotes(address)));
  }
}

std::vector<std::uint32_t> manifest_reader::read_cores(const YAML::Node& value) {
  if (!value.IsSequence() || value.size() == 0) {
    fail(value.Mark(), fmt::format("'nodes.cores' must be a list of CPU numbers such as [0, 1], "
                                   "but is {}",
                                   value.IsSequence() ? "empty" : kind_of(value)));
  }
  std::vector<std::uint32_t> cores;
  for (const YAML::Node& item : value) {
    const auto core = static_cast<std::uint32_t>(number(item, "nodes.cores", 0, cpu_max));
    if (std::ranges::find(cores, core) != cores.end()) {
      fail(item.Mark(), fmt::format("'nodes.cores' lists CPU {} twice", core));
    }
    cores.push_back(core);
  }
  return cores;
}

void manifest_reader::check_names() const {
  if (result_.name.size() > 64 || !only(result_.name, all_letters_digits() + "._-")) {
    fail(mark_of("name"), fmt::format("'name' must be 1 to 64 letters, digits, '.', '_' or '-', "
                                      "but is {}",
                                      in_quotes(result_.name)));
  }
}

void manifest_reader::check_roles() const {
  for (std::size_t i = 0; i < role_words().size(); ++i) {
    if (result_.with_role(static_cast<node_role>(i)).empty()) {
      fail(mark_of("nodes"), fmt::format("no node has the role '{}'; a cluster needs at least one "
                                         "of each role",
                                         role_words()[i]));
    }
  }
}

void manifest_reader::check_relations() const {
  const timeout_options& t = result_.timeouts;
  const std::uint64_t until_read = std::uint64_t{t.route_ms} + t.queue_ms + t.pull_ms;
  if (until_read >= t.lease_ms) {
    fail(mark_of("timeouts.lease_ms"),
         fmt::format("'timeouts.lease_ms' is {}, but must exceed route_ms + queue_ms + pull_ms = "
                     "{} so that KV blocks stay leased until a decode worker has read them",
                     t.lease_ms, until_read));
  }
  if (std::uint64_t{2} * t.heartbeat_ms > t.health_deadline_ms) {
    fail(mark_of("timeouts.heartbeat_ms"),
         fmt::format("'timeouts.heartbeat_ms' is {}, but must be at most half of "
                     "health_deadline_ms = {} so that one late heartbeat ends nothing",
                     t.heartbeat_ms, t.health_deadline_ms));
  }
  const limit_options& l = result_.limits;
  if (l.peer_queue_bytes_max < l.frame_bytes_max) {
    fail(mark_of("limits.peer_queue_bytes_max"),
         fmt::format("'limits.peer_queue_bytes_max' is {}, but must hold one frame of "
                     "limits.frame_bytes_max = {}",
                     l.peer_queue_bytes_max, l.frame_bytes_max));
  }
}

std::uint64_t manifest_reader::number(const YAML::Node& value, std::string_view key,
                                      std::uint64_t min, std::uint64_t max,
                                      std::string_view unit) const {
  const auto n = value.IsScalar() ? decimal<std::uint64_t>(value.Scalar()) : std::nullopt;
  if (!n || *n < min || *n > max) {
    fail(value.Mark(), fmt::format("'{}' must be a whole number from {} to {}{}{}, but is {}", key,
                                   min, max, unit.empty() ? "" : " ", unit, kind_of(value)));
  }
  return *n;
}

float manifest_reader::fraction(const YAML::Node& value, std::string_view key, float min,
                                float max) const {
  const auto f = value.IsScalar() ? decimal<float>(value.Scalar()) : std::nullopt;
  if (!f || !(*f >= min && *f <= max)) {
    fail(value.Mark(), fmt::format("'{}' must be a number from {} to {}, but is {}", key, min, max,
                                   kind_of(value)));
  }
  return *f;
}

bool manifest_reader::flag(const YAML::Node& value, std::string_view key) const {
  const std::string_view word = value.IsScalar() ? std::string_view(value.Scalar()) : "";
  if (word != "true" && word != "false") {
    fail(value.Mark(), fmt::format("'{}' must be true or false, but is {}", key, kind_of(value)));
  }
  return word == "true";
}

std::string manifest_reader::word(const YAML::Node& value, std::string_view key,
                                  std::span<const std::string_view> words) const {
  const std::string given = text(value, key);
  if (std::ranges::find(words, given) != words.end()) {
    return given;
  }
  const auto guess = nearest(given, words);
  fail(value.Mark(),
       fmt::format("'{}' must be one of {}, but is {}{}", key, fmt::join(words, ", "),
                   in_quotes(given), guess ? fmt::format("; did you mean '{}'?", *guess) : ""));
}

std::string manifest_reader::text(const YAML::Node& value, std::string_view key) const {
  if (!value.IsScalar() || value.Scalar().empty()) {
    fail(value.Mark(), fmt::format("{} must be a word, but is {}",
                                   key == "a key" ? std::string(key) : in_quotes(key),
                                   value.IsScalar() ? "empty" : kind_of(value)));
  }
  if (value.Scalar().size() > text_bytes_max ||
      std::ranges::any_of(value.Scalar(), [](char c) { return c >= 0 && c < 0x20; })) {
    fail(value.Mark(),
         fmt::format("{} is too long or holds control characters", in_quotes(value.Scalar())));
  }
  return value.Scalar();
}

void manifest_reader::fail_unknown_key(std::string_view section, const std::string& name,
                                       const YAML::Mark& mark) const {
  const std::string path = path_of(section, name);
  std::vector<std::string_view> here;
  if (section == "nodes") {
    std::ranges::transform(node_keys(), std::back_inserter(here), &node_key::name);
  } else {
    here = names_in(section);
  }
  const auto guess = nearest(name, here);
  const std::string hint = guess ? fmt::format("did you mean '{}'?", path_of(section, *guess))
                                 : hint_elsewhere(name, here);
  fail(mark, fmt::format("{} is not a key of the manifest; {}", in_quotes(path), hint));
}

void manifest_reader::fail(const YAML::Mark& mark, const std::string& sentence) const {
  if (mark.is_null()) {
    throw manifest_error(fmt::format("{}: {}", source_, sentence));
  }
  throw manifest_error(
      fmt::format("{}:{}:{}: {}", source_, mark.line + 1, mark.column + 1, sentence));
}

YAML::Mark manifest_reader::mark_of(std::string_view path) const {
  const auto found = given_.find(path);
  return found == given_.end() ? YAML::Mark::null_mark() : found->second;
}

}  // namespace eldr::cluster
