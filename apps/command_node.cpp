/// `eldr node`: one node of a cluster, in the foreground.

#include <memory>

#include "apps/commands.hpp"
#include "cluster/manifest.hpp"
#include "cluster/node_process.hpp"

namespace eldr::apps {

void add_node(CLI::App& app, command& chosen) {
  struct node_options {
    std::filesystem::path file;
    std::string name;
    int ready_fd = -1;
  };
  auto options = std::make_shared<node_options>();
  CLI::App* node = app.add_subcommand("node", "Run one node of a cluster in the foreground");
  add_manifest_option(*node, options->file);
  node->add_option("--name", options->name, "The node's name in the manifest")->required();
  node->add_option("--ready-fd", options->ready_fd,
                   "Open descriptor on which to report readiness (for supervisors)");
  node->callback([options, &chosen] {
    chosen = [options] {
      const auto m = cluster::load_manifest(options->file);
      return cluster::run_node(m, m.require(options->name), options->ready_fd);
    };
  });
}

}  // namespace eldr::apps
