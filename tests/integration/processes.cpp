#include "tests/integration/processes.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace eldr::testing {

using clock = std::chrono::steady_clock;

namespace {

std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Starts `eldr ARGUMENTS` with its output in files, as leader of a process group.
pid_t start_eldr(const std::vector<std::string>& arguments, const std::filesystem::path& out,
                 const std::filesystem::path& err) {
  std::vector<std::string> words{ELDR_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (err == out) {
    posix_spawn_file_actions_adddup2(&files, 1, 2);
  } else {
    posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, ELDR_BINARY, &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    throw std::runtime_error("cannot start " ELDR_BINARY);
  }
  return pid;
}

/// Exit code, 128 + signal, or -1 if it had to be killed.
int wait_for(pid_t pid, std::chrono::seconds limit) {
  const auto deadline = clock::now() + limit;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (clock::now() > deadline) {
      kill(-pid, SIGKILL);
      waitpid(pid, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

scratch::scratch() {
  auto pattern = (std::filesystem::temp_directory_path() / "eldr-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("cannot make a temporary folder");
  }
  path_ = pattern;
}

scratch::~scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path scratch::file(const std::string& name, const std::string& content) const {
  std::ofstream(path_ / name, std::ios::binary) << content;
  return path_ / name;
}

std::vector<int> free_ports(std::size_t count) {
  std::vector<int> sockets;
  std::vector<int> ports;
  for (std::size_t i = 0; i < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no free port");
    }
    sockets.push_back(fd);
    ports.push_back(ntohs(address.sin_port));
  }
  for (int fd : sockets) {
    close(fd);
  }
  return ports;
}

command_result run_eldr(const std::vector<std::string>& arguments, std::chrono::seconds limit) {
  const scratch folder;
  const auto pid = start_eldr(arguments, folder.path() / "out", folder.path() / "err");
  command_result result;
  result.code = wait_for(pid, limit);
  result.out = slurp(folder.path() / "out");
  result.err = slurp(folder.path() / "err");
  return result;
}

running_cluster::running_cluster(const cluster_shape& shape) {
  const auto ports = free_ports(
      static_cast<std::size_t>(shape.gateways + shape.routers + shape.prefills + shape.decodes));
  std::ostringstream yaml;
  yaml << "name: test\npolicy: {name: " << shape.policy << "}\n" << shape.more << "nodes:\n";
  std::size_t next = 0;
  const auto add = [&](const char* role, int count) {
    for (int i = 1; i <= count; ++i) {
      yaml << "  - {name: " << role << "-" << i << ", role: " << role
           << ", listen: " << ports[next++] << "}\n";
    }
  };
  add("gateway", shape.gateways);
  add("router", shape.routers);
  add("prefill", shape.prefills);
  add("decode", shape.decodes);
  manifest_path_ = folder_.file("cluster.yaml", yaml.str());
  manifest_ = cluster::load_manifest(manifest_path_);
  pid_ =
      start_eldr({"up", manifest_path_.string()}, folder_.path() / "log", folder_.path() / "log");
  const auto deadline = clock::now() + std::chrono::seconds(60);
  while (log().find(" is ready: ") == std::string::npos) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != 0 || clock::now() > deadline) {
      kill(-pid_, SIGKILL);
      throw std::runtime_error("the cluster did not start:\n" + log());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

running_cluster::~running_cluster() {
  if (pid_ != 0) {
    stop();
  }
}

int running_cluster::stop() {
  kill(pid_, SIGTERM);
  const auto code = wait_for(std::exchange(pid_, 0), std::chrono::seconds(40));
  return code;
}

std::string running_cluster::log() const {
  return slurp(folder_.path() / "log");
}

pid_t running_cluster::node_pid(const std::string& node) const {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    const auto command = slurp(entry.path() / "cmdline");
    if (command.find(manifest_path_.string()) != std::string::npos &&
        command.find(std::string("--name") + '\0' + node + '\0') != std::string::npos) {
      return std::stoi(name);
    }
  }
  return 0;
}

std::map<std::string, nlohmann::json> running_cluster::status() const {
  const auto said = run_eldr({"status", "--json", "--manifest", manifest_path_.string()});
  const auto parsed = nlohmann::json::parse(said.out);
  std::map<std::string, nlohmann::json> nodes;
  for (const auto& node : parsed.at("nodes")) {
    nodes[node.at("node")] = node;
  }
  if (nodes.size() != manifest_.nodes.size()) {
    throw std::runtime_error("eldr status left nodes out:\n" + said.out + said.err);
  }
  return nodes;
}

std::string running_cluster::unrest(const std::string& dead) const {
  const auto deadline = clock::now() + std::chrono::seconds(5);
  while (true) {
    std::string unrest;
    for (const auto& [name, node] : status()) {
      if (node.contains("counts") == (name == dead)) {
        unrest += name + (name == dead ? " is alive; " : " is absent; ");
      }
      if (!node.contains("counts")) {
        continue;
      }
      const auto& counts = node.at("counts");
      for (const auto* zero : {"in_flight", "requests", "held", "depth", "waiting", "running",
                               "pulling", "leases", "blocks_pinned"}) {
        if (counts.contains(zero) && counts.at(zero) != 0) {
          unrest += name + " " + zero + "=" + counts.at(zero).dump() + "; ";
        }
      }
      if (counts.contains("blocks_total") &&
          counts.at("blocks_free").get<int>() + counts.at("blocks_cached").get<int>() !=
              counts.at("blocks_total").get<int>()) {
        unrest += name + " has lost blocks; ";
      }
    }
    if (unrest.empty() || clock::now() > deadline) {
      return unrest;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

std::vector<answer> ask(cluster::client& client, const std::string& gateway,
                        const std::vector<cluster::completion_request>& requests,
                        std::size_t concurrency) {
  std::vector<answer> answers(requests.size());
  std::map<std::uint64_t, std::size_t> running;
  std::size_t next = 0;
  std::size_t done = 0;
  while (done < requests.size()) {
    while (next < requests.size() && running.size() < concurrency) {
      running[client.submit(gateway, requests[next])] = next;
      ++next;
    }
    auto event = client.next(std::chrono::seconds(30));
    if (!event) {
      throw std::runtime_error("no answer for 30 s");
    }
    if (const auto* lost = std::get_if<cluster::node_lost>(&*event)) {
      throw std::runtime_error("lost " + lost->node + ": " + lost->why);
    }
    const auto* piece = std::get_if<cluster::completion_piece>(&*event);
    if (piece == nullptr) {
      continue;
    }
    auto& a = answers[running.at(piece->request)];
    if (piece->position != a.tokens.size()) {
      throw std::runtime_error("tokens out of order");
    }
    a.tokens.insert(a.tokens.end(), piece->ids.begin(), piece->ids.end());
    a.text += piece->text;
    if (piece->finish != wire::FinishReason::NONE) {
      a.last = *piece;
      running.erase(piece->request);
      ++done;
    }
  }
  return answers;
}

std::vector<std::string> some_prompts(std::size_t count) {
  const auto golden = nlohmann::json::parse(
      slurp(std::filesystem::path(ELDR_SOURCE_DIR) / "models/tiny-moe/golden.json"));
  std::vector<std::string> prompts;
  for (std::size_t i = 0; prompts.size() < count; ++i) {
    const std::string text = golden.at(i % golden.size()).at("text");
    // Whole, doubled, and led by a prefix that several prompts share.
    const auto round = i / golden.size();
    prompts.push_back(
        round == 0   ? text
        : round == 1 ? text + "\n" + text
        : round == 2
            ? "A common beginning of several prompts, long enough for whole blocks of KV. " + text
            : text + " " + std::to_string(i));
  }
  return prompts;
}

}  // namespace eldr::testing
