/// `eldr status` and `eldr down`: what the nodes of a running cluster say of themselves, and its
/// end.

#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.hpp"
#include "cluster/client.hpp"

namespace eldr::apps {
namespace {

using clock = std::chrono::steady_clock;

struct cluster_status {
  std::map<std::string, cluster::node_status> nodes;
  std::map<std::string, std::string> absent;  ///< Name to reason.
};

std::vector<const cluster::node_spec*> all_nodes(const cluster::manifest& m) {
  std::vector<const cluster::node_spec*> nodes;
  for (const auto& node : m.nodes) {
    nodes.push_back(&node);
  }
  return nodes;
}

cluster_status ask_all(const cluster::manifest& m) {
  cluster_status out;
  cluster::client client(m);
  out.absent = client.attach_all(all_nodes(m));
  std::size_t asked = 0;
  for (const auto& node : m.nodes) {
    if (!out.absent.contains(node.name)) {
      client.ask_status(node.name);
      ++asked;
    }
  }
  const auto deadline = clock::now() + std::chrono::seconds(3);
  while (out.nodes.size() < asked && clock::now() < deadline) {
    const auto event = client.next(std::chrono::milliseconds(100));
    if (!event) {
      continue;
    }
    if (const auto* status = std::get_if<cluster::node_status>(&*event)) {
      out.nodes[status->node] = *status;
    } else if (const auto* lost = std::get_if<cluster::node_lost>(&*event)) {
      if (!out.nodes.contains(lost->node)) {
        out.absent[lost->node] = lost->why;
        --asked;
      }
    }
  }
  for (const auto& node : m.nodes) {
    if (!out.nodes.contains(node.name) && !out.absent.contains(node.name)) {
      out.absent[node.name] = "it did not answer in time";
    }
  }
  return out;
}

nlohmann::ordered_json to_json(const cluster::node_status& s) {
  nlohmann::ordered_json out;
  out["state"] = s.draining ? "draining" : s.ready ? "ready" : "starting";
  out["incarnation"] = fmt::format("{:016x}", s.incarnation);
  out["uptime_ms"] = s.uptime_ms;
  out["backend"] = s.backend;
  out["fingerprint"] = fmt::format("{:016x}", s.fingerprint);
  out["peers"] = s.peers;
  for (const auto& [name, value] : s.counts) {
    out["counts"][name] = value;
  }
  for (const auto& w : s.workers) {
    out["workers"].push_back({{"node", w.node},
                              {"role", w.role},
                              {"depth", w.depth},
                              {"blocks_total", w.blocks_total},
                              {"draining", w.draining},
                              {"slot", w.slot}});
  }
  return out;
}

void print_json(const cluster::manifest& m, const cluster_status& status) {
  nlohmann::ordered_json out;
  out["cluster"] = m.name;
  for (const auto& node : m.nodes) {
    nlohmann::ordered_json entry;
    entry["node"] = node.name;
    entry["role"] = to_string(node.role);
    entry["address"] = node.address();
    if (const auto found = status.nodes.find(node.name); found != status.nodes.end()) {
      entry.update(to_json(found->second));
    } else {
      entry["state"] = "absent";
      entry["reason"] = status.absent.at(node.name);
    }
    out["nodes"].push_back(std::move(entry));
  }
  std::cout << out.dump(2) << '\n';
}

std::string load_of(const cluster::node_status& s) {
  std::map<std::string, std::int64_t> c(s.counts.begin(), s.counts.end());
  if (s.role == "gateway") {
    return fmt::format("{} live; {} finished, {} failed, {} cancelled, {} refused, {} retries",
                       c["requests"], c["finished_total"], c["failed_total"], c["cancelled_total"],
                       c["refused_total"], c["retries_total"]);
  }
  if (s.role == "router") {
    return fmt::format("{} workers, depth {}; {} submits, {} handoffs", c["workers"], c["depth"],
                       c["submits_total"], c["handoffs_total"]);
  }
  const auto blocks = fmt::format("blocks {} free, {} cached, {} pinned of {}", c["blocks_free"],
                                  c["blocks_cached"], c["blocks_pinned"], c["blocks_total"]);
  if (s.role == "prefill") {
    return fmt::format("{} waiting, {} running, {} leases; {}; {} prompts", c["waiting"],
                       c["running"], c["leases"], blocks, c["tasks_total"]);
  }
  return fmt::format("{} waiting, {} pulling, {} running; {}; {} tokens", c["waiting"],
                     c["pulling"], c["running"], blocks, c["tokens_total"]);
}

void print_table(const cluster::manifest& m, const cluster_status& status) {
  std::size_t width = 4;
  for (const auto& node : m.nodes) {
    width = std::max(width, node.name.size());
  }
  for (const auto& node : m.nodes) {
    const auto found = status.nodes.find(node.name);
    if (found == status.nodes.end()) {
      std::cout << fmt::format("{:<{}}  {:<8}  {:<9}  {}\n", node.name, width, to_string(node.role),
                               "absent", status.absent.at(node.name));
      continue;
    }
    const auto& s = found->second;
    std::cout << fmt::format("{:<{}}  {:<8}  {:<9}  {}\n", node.name, width, s.role,
                             s.draining ? "draining"
                             : s.ready  ? "ready"
                                        : "starting",
                             load_of(s));
  }
}

int run_status(const std::filesystem::path& file, bool json) {
  const auto m = cluster::load_manifest(file);
  const auto status = ask_all(m);
  if (json) {
    print_json(m, status);
  } else {
    print_table(m, status);
  }
  return status.absent.empty() ? 0 : 1;
}

/// Asks nodes to end and waits until their sessions have.
void stop_nodes(cluster::client& client, const std::vector<std::string>& names,
                const cluster::manifest& m) {
  for (const auto& name : names) {
    if (client.attached(name)) {
      client.shut_down(name, m.timeouts.drain_ms);
    }
  }
  const auto deadline = clock::now() + std::chrono::milliseconds(m.timeouts.drain_ms + 2'000);
  const auto left = [&] {
    return std::count_if(names.begin(), names.end(),
                         [&](const auto& n) { return client.attached(n); });
  };
  while (left() > 0) {
    if (clock::now() > deadline) {
      throw std::runtime_error(fmt::format("{} nodes have not ended in time", left()));
    }
    (void)client.next(std::chrono::milliseconds(50));
  }
}

int run_down(const std::filesystem::path& file) {
  const auto m = cluster::load_manifest(file);
  cluster::client client(m);
  const auto absent = client.attach_all(all_nodes(m));
  if (absent.size() == m.nodes.size()) {
    throw std::runtime_error(
        fmt::format("no node of cluster '{}' answers ({}: {}); it is not running", m.name,
                    absent.begin()->first, absent.begin()->second));
  }
  // Gateways first: they finish their requests while the workers still serve.
  std::vector<std::string> gateways;
  std::vector<std::string> others;
  for (const auto& node : m.nodes) {
    (node.role == cluster::node_role::gateway ? gateways : others).push_back(node.name);
  }
  stop_nodes(client, gateways, m);
  stop_nodes(client, others, m);
  std::cout << fmt::format("{} nodes have ended\n", m.nodes.size() - absent.size());
  for (const auto& [name, why] : absent) {
    std::cout << fmt::format("{} was not running: {}\n", name, why);
  }
  return 0;
}

}  // namespace

void add_status(CLI::App& app, command& chosen) {
  auto file = std::make_shared<std::filesystem::path>();
  auto json = std::make_shared<bool>(false);
  CLI::App* status = app.add_subcommand("status", "Show what the nodes of a running cluster do");
  add_manifest_option(*status, *file);
  status->add_flag("--json", *json, "For programs");
  status->callback([=, &chosen] { chosen = [=] { return run_status(*file, *json); }; });
}

void add_down(CLI::App& app, command& chosen) {
  auto file = std::make_shared<std::filesystem::path>();
  CLI::App* down = app.add_subcommand("down", "Let a running cluster finish its requests and end");
  add_manifest_option(*down, *file);
  down->callback([=, &chosen] { chosen = [=] { return run_down(*file); }; });
}

}  // namespace eldr::apps
