#include "apps/bench_process.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <stdexcept>
#include <thread>

namespace eldr::apps {
namespace {

using clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

cluster::child_process start(const std::string& name, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
  return cluster::spawn({name, std::move(arguments)});
}

}  // namespace

void interruption::check() {
  for (int signal = signals_.take(); signal != 0; signal = signals_.take()) {
    if (signal != SIGCHLD) {
      throw std::runtime_error("interrupted; nothing was left running");
    }
  }
}

own_process::own_process(const std::string& name, std::vector<std::string> arguments, int stop_ms)
    : name_(name), stop_ms_(stop_ms), process_(start(name, std::move(arguments))) {}

own_process::~own_process() {
  cluster::signal_group(pid(), SIGTERM);
  const auto deadline = clock::now() + milliseconds(stop_ms_);
  for (int status = 0; !cluster::collect(pid(), status);) {
    if (clock::now() > deadline) {
      cluster::signal_group(pid(), SIGKILL);
    }
    process_.output.read_some(1u << 16, [](std::string_view) {});  // So that it never waits for us.
    std::this_thread::sleep_for(milliseconds(2));
  }
}

std::string own_process::wait_for_line(const std::function<bool(std::string_view)>& wanted,
                                       milliseconds limit, interruption& stop) {
  const auto deadline = clock::now() + limit;
  std::optional<std::string> found;
  std::string last;
  while (!found) {
    stop.check();
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - clock::now()).count();
    if (left <= 0) {
      throw std::runtime_error(fmt::format("{} was not ready within {} ms; its last line: {}",
                                           name_, limit.count(), last.empty() ? "none" : last));
    }
    std::array<pollfd, 2> watched{{{stop.fd(), POLLIN, 0}, {process_.output.fd(), POLLIN, 0}}};
    (void)poll(watched.data(), watched.size(), static_cast<int>(left));
    process_.output.read_some(1u << 16, [&](std::string_view line) {
      if (!found && wanted(line)) {
        found = std::string(line);
      }
      last = line;
    });
    if (!found && process_.output.fd() < 0) {
      throw std::runtime_error(fmt::format("{} ended before it was ready; its last line: {}", name_,
                                           last.empty() ? "none" : last));
    }
  }
  return *found;
}

}  // namespace eldr::apps
