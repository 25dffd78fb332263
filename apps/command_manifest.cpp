/// `eldr manifest`: checks a manifest, or prints what may stand in one.

#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "apps/commands.hpp"
#include "cluster/manifest.hpp"
#include "cluster/manifest_keys.hpp"

namespace eldr::apps {
namespace {

struct check_options {
  std::filesystem::path file;
  bool print = false;
};

std::string summary(const cluster::manifest& m) {
  std::string roles;
  for (std::size_t i = 0; i < cluster::role_words().size(); ++i) {
    const auto role = static_cast<cluster::node_role>(i);
    roles += fmt::format("{}{} {}", i == 0 ? "" : ", ", m.with_role(role).size(), to_string(role));
  }
  return fmt::format("cluster '{}', {} nodes ({}), policy {}: no faults found", m.name,
                     m.nodes.size(), roles, m.policy.name);
}

int run(const check_options& options) {
  const cluster::manifest m = cluster::load_manifest(options.file);
  if (options.print) {
    std::cout << cluster::to_yaml(m);
  } else {
    std::cout << options.file.string() << ": " << summary(m) << '\n';
  }
  return 0;
}

int run_keys() {
  std::cout << cluster::key_reference();
  return 0;
}

}  // namespace

void add_manifest(CLI::App& app, command& chosen) {
  CLI::App* group = app.add_subcommand("manifest", "Check a manifest, or list its keys");
  group->require_subcommand(1);

  auto options = std::make_shared<check_options>();
  CLI::App* check = group->add_subcommand("check", "Say what is wrong with a manifest");
  check->add_option("file", options->file, "The manifest")->required();
  check->add_flag("--print", options->print, "Print it as YAML with every default written out");
  check->callback([options, &chosen] { chosen = [options] { return run(*options); }; });

  CLI::App* keys = group->add_subcommand("keys", "List all keys with unit, default and meaning");
  keys->callback([&chosen] { chosen = run_keys; });
}

CLI::Option* add_manifest_option(CLI::App& app, std::filesystem::path& file) {
  file = "cluster.yaml";
  return app.add_option("-m,--manifest", file, "The cluster's manifest")
      ->envname("ELDR_MANIFEST")
      ->capture_default_str();
}

}  // namespace eldr::apps
