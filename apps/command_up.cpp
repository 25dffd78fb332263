/// `eldr up`: runs this machine's nodes of a cluster until it is told to stop.

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <vector>

#include "apps/commands.hpp"
#include "cluster/local_address.hpp"
#include "cluster/manifest.hpp"
#include "cluster/readiness.hpp"
#include "cluster/supervisor.hpp"
#include "cluster/token.hpp"

namespace eldr::apps {
namespace {

using cluster::child_spec;
using cluster::manifest;
using cluster::node_spec;
using cluster::supervisor;

struct up_options {
  std::filesystem::path file;
  bool print_commands = false;
  std::uint32_t ready_ms = 60'000;
};

std::vector<std::string> node_command(const std::filesystem::path& file, const node_spec& node) {
  return {std::filesystem::read_symlink("/proc/self/exe").string(),
          "node",
          "--manifest",
          std::filesystem::absolute(file).string(),
          "--name",
          node.name};
}

/// A word as a shell reads it back.
std::string shell_word(const std::string& word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=+,@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) {
    return word;
  }
  std::string quoted = "'";
  for (const char c : word) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

int print_commands(const up_options& options, const manifest& m) {
  for (const node_spec& node : m.nodes) {
    for (const std::string& word : node_command(options.file, node)) {
      std::cout << shell_word(word) << ' ';
    }
    std::cout << " # on " << node.address() << '\n';
  }
  return 0;
}

std::vector<child_spec> local_nodes(const up_options& options, const manifest& m) {
  std::vector<child_spec> specs;
  for (const node_spec& node : m.nodes) {
    if (cluster::is_local_host(node.host)) {
      std::vector<std::string> command = node_command(options.file, node);
      command.insert(command.end(), {"--ready-fd", std::to_string(cluster::readiness_fd)});
      // Gateways first: they finish their requests while the workers still serve.
      const int stop_stage = node.role == cluster::node_role::gateway ? 0 : 1;
      specs.push_back({node.name, std::move(command), stop_stage});
    }
  }
  if (specs.empty()) {
    throw cluster::manifest_error(fmt::format(
        "{}: none of its nodes listens on an address of this machine; run 'eldr up' on the hosts "
        "that it names",
        options.file.string()));
  }
  return specs;
}

/// Until it is to stop. False if that was before the nodes were ready.
bool serve(supervisor& nodes, const up_options& options, const manifest& m) {
  try {
    if (!nodes.wait_ready(std::chrono::milliseconds(options.ready_ms))) {
      return false;
    }
  } catch (const cluster::supervisor_error&) {
    nodes.abort();
    throw;
  }
  const std::size_t elsewhere = m.nodes.size() - nodes.running();
  std::cout << fmt::format("cluster '{}' is ready: {} nodes{}, gateway at {}", m.name,
                           nodes.running(),
                           elsewhere > 0 ? fmt::format(" here, {} elsewhere", elsewhere) : "",
                           m.with_role(cluster::node_role::gateway).front()->address())
            << std::endl;
  if (nodes.run_until_signal() == supervisor::cause::signal) {
    std::cout << fmt::format(
                     "stopping {} nodes: what runs may finish within {} ms; a second "
                     "signal kills",
                     nodes.running(), m.timeouts.drain_ms)
              << std::endl;
  }
  return true;
}

int run(const up_options& options) {
  const manifest m = cluster::load_manifest(options.file);
  if (options.print_commands) {
    return print_commands(options, m);
  }
  cluster::ensure_token(m.token_path());
  const std::vector<child_spec> specs = local_nodes(options, m);
  supervisor nodes({.drain_ms = m.timeouts.drain_ms,
                    .output_fd = STDERR_FILENO,
                    .live = isatty(STDERR_FILENO) == 1});
  nodes.start(specs);
  if (!serve(nodes, options, m)) {
    nodes.abort();
    throw std::runtime_error("interrupted before the cluster was ready; all nodes were stopped");
  }
  nodes.stop();
  if (!nodes.losses().empty()) {
    throw std::runtime_error(
        fmt::format("the cluster has stopped; {} of its nodes did not end well, the first: {}",
                    nodes.losses().size(), nodes.losses().front()));
  }
  std::cout << "the cluster has stopped\n";
  return 0;
}

}  // namespace

void add_up(CLI::App& app, command& chosen) {
  auto options = std::make_shared<up_options>();
  CLI::App* up = app.add_subcommand(
      "up", "Start this machine's nodes of a cluster and keep them until Ctrl-C");
  up->add_option("manifest", options->file, "The cluster's manifest")->required();
  up->add_flag("--print-commands", options->print_commands,
               "Print the command line of every node instead");
  up->add_option("--ready-ms", options->ready_ms, "Time for all nodes to become ready")
      ->check(CLI::Range(1, 3'600'000))
      ->capture_default_str();
  up->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace eldr::apps
