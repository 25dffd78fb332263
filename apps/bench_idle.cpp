/// `eldr bench idle`: what the nodes of a cluster without requests use of a core.

#include <fmt/format.h>
#include <poll.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "apps/bench_cluster.hpp"
#include "apps/bench_commands.hpp"
#include "apps/bench_report.hpp"

namespace eldr::apps {
namespace {

using std::chrono::steady_clock;

struct idle_options : bench_options {
  std::filesystem::path file;
  double seconds = 5;
  double settle_seconds = 5;
};

/// What a process has used so far, all its threads together.
struct usage {
  double cpu_s = 0;
  double switches = 0;  ///< Times that a thread went to sleep of its own accord.
};

double number_after(const std::string& line) {
  return std::stod(line.substr(line.find(':') + 1));
}

usage usage_of(pid_t pid) {
  usage sum;
  std::error_code gone;
  for (const auto& thread :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), gone)) {
    double ns = 0;
    std::ifstream(thread.path() / "schedstat") >> ns;
    sum.cpu_s += ns / 1e9;
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("voluntary_ctxt_switches")) {
        sum.switches += number_after(line);
      }
    }
  }
  if (gone) {
    throw std::runtime_error("a node of the cluster has ended: " + gone.message());
  }
  return sum;
}

void wait(double seconds, interruption& stop) {
  const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
  while (steady_clock::now() < end) {
    stop.check();
    const std::chrono::duration<double, std::milli> left = end - steady_clock::now();
    pollfd watched{stop.fd(), POLLIN, 0};
    (void)poll(&watched, 1, std::max(0, static_cast<int>(left.count()) + 1));
  }
}

int run(idle_options o) {
  if (o.quick) {
    o.seconds = 0.5;
    o.settle_seconds = 0;
  }
  interruption stop;
  show_progress("starting a cluster ...");
  const bench_cluster cluster(o.file, stop);
  wait(o.settle_seconds, stop);
  show_progress(fmt::format("watching it for {:.1f} s ...", o.seconds));
  const auto nodes = cluster.nodes();
  std::map<std::string, usage> before;
  for (const auto& [name, pid] : nodes) {
    before[name] = usage_of(pid);
  }
  const auto begin = steady_clock::now();
  wait(o.seconds, stop);
  const double time_s = std::chrono::duration<double>(steady_clock::now() - begin).count();
  bench_report report("idle", o,
                      {{"node", "node"},
                       {"cpu_percent", "% of a core", 2},
                       {"sleeps_per_s", "sleeps/s", 0},
                       {"aim", "aim"}});
  for (const auto& [name, pid] : nodes) {
    const auto now = usage_of(pid);
    report.add({name, (now.cpu_s - before[name].cpu_s) / time_s * 100,
                (now.switches - before[name].switches) / time_s, std::string("< 1")});
  }
  report.note(fmt::format("Over {:.1f} s; heartbeats every {} ms.", time_s,
                          cluster.manifest().timeouts.heartbeat_ms));
  report.print();
  return 0;
}

}  // namespace

void add_bench_idle(CLI::App& bench, command& chosen) {
  auto o = std::make_shared<idle_options>();
  CLI::App* app =
      bench.add_subcommand("idle", "What the nodes of a cluster without requests use of a core");
  add_bench_options(*app, *o);
  app->add_option("--up", o->file, "Manifest of the cluster to start; the demo's if not given");
  app->add_option("--seconds", o->seconds, "Time to watch")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace eldr::apps
