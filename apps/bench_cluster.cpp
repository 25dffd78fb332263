#include "apps/bench_cluster.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "cluster/unique_fd.hpp"

namespace eldr::apps {
namespace {

/// Ports of loopback that nobody listens on now.
std::vector<int> free_ports(std::size_t count) {
  std::vector<cluster::unique_fd> taken;  // Until all are known, so that they differ.
  std::vector<int> ports;
  while (ports.size() < count) {
    cluster::unique_fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw std::system_error(errno, std::generic_category(), "cannot find a free port");
    }
    ports.push_back(ntohs(address.sin_port));
    taken.push_back(std::move(fd));
  }
  return ports;
}

std::string demo_manifest() {
  constexpr std::array<const char*, 8> nodes{"gateway",  "router",   "prefill-1", "prefill-2",
                                             "decode-1", "decode-2", "decode-3",  "decode-4"};
  const auto ports = free_ports(nodes.size());
  std::string text = "name: bench\nlog_level: warn\nnodes:\n";
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::string name = nodes[i];
    text += fmt::format("  - {{name: {}, role: {}, listen: {}}}\n", name,
                        name.substr(0, name.find('-')), ports[i]);
  }
  return text;
}

std::vector<std::string> words_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/cmdline", pid), std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) {
    words.push_back(word);
  }
  return words;
}

}  // namespace

demo_folder::demo_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "eldr-bench-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), "cannot make a temporary folder");
  }
  folder_ = name;
  manifest_ = folder_ / "cluster.yaml";
  std::ofstream(manifest_) << demo_manifest();
}

demo_folder::~demo_folder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bench_cluster::bench_cluster(const std::filesystem::path& file, interruption& stop)
    : demo_(file.empty() ? std::make_optional<demo_folder>() : std::nullopt),
      file_(demo_ ? demo_->manifest() : file),
      manifest_(cluster::load_manifest(file_)),
      up_("eldr up", {"up", std::filesystem::absolute(file_).string()},
          static_cast<int>(manifest_.timeouts.drain_ms) + 5000) {
  up_.wait_for_line(
      [](std::string_view line) { return line.find(" is ready: ") != std::string_view::npos; },
      std::chrono::seconds(90), stop);
}

std::map<std::string, pid_t> bench_cluster::nodes() const {
  std::ifstream in(fmt::format("/proc/{0}/task/{0}/children", up_.pid()));
  std::map<std::string, pid_t> found;
  for (pid_t pid = 0; in >> pid;) {
    const auto words = words_of(pid);
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] == "--name") {
        found[words[i + 1]] = pid;
      }
    }
  }
  return found;
}

}  // namespace eldr::apps
