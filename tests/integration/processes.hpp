#pragma once
/// Real `eldr` processes for the tests: single commands and whole clusters in a folder of their
/// own.

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/client.hpp"
#include "cluster/manifest.hpp"

namespace eldr::testing {

/// A folder that is removed with everything in it.
class scratch {
 public:
  scratch();
  ~scratch();
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  const std::filesystem::path& path() const noexcept { return path_; }
  /// Writes a file and returns its path.
  std::filesystem::path file(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

/// TCP ports of 127.0.0.1 that nobody listens on now.
std::vector<int> free_ports(std::size_t count);

struct command_result {
  int code = -1;  ///< Exit code; 128 + signal if killed; -1 if it ran past its time.
  std::string out;
  std::string err;
};
/// Runs `eldr ARGUMENTS`.
command_result run_eldr(const std::vector<std::string>& arguments,
                        std::chrono::seconds limit = std::chrono::seconds(60));

struct cluster_shape {
  int gateways = 1;
  int routers = 1;
  int prefills = 2;
  int decodes = 4;
  std::string policy = "jsq";
  std::string more;  ///< Further manifest lines.
};

/// `eldr up` in a process of its own. The destructor stops it, and kills what does not stop.
class running_cluster {
 public:
  explicit running_cluster(const cluster_shape& shape = {});
  ~running_cluster();
  running_cluster(const running_cluster&) = delete;
  running_cluster& operator=(const running_cluster&) = delete;

  const std::filesystem::path& manifest_path() const noexcept { return manifest_path_; }
  const cluster::manifest& manifest() const noexcept { return manifest_; }
  /// Process of a node; 0 if it does not run.
  pid_t node_pid(const std::string& node) const;
  /// SIGTERM, then waits: exit code of `eldr up`.
  int stop();
  /// What `eldr up` and its nodes have written so far.
  std::string log() const;
  /// `eldr status --json`, node by node.
  std::map<std::string, nlohmann::json> status() const;
  /// Waits (bounded) until every count of work in the cluster is zero and every block is free or
  /// cached; returns what is not so, empty if all is. `dead`: a node that must not answer.
  std::string unrest(const std::string& dead = {}) const;

 private:
  scratch folder_;
  std::filesystem::path manifest_path_;
  cluster::manifest manifest_;
  pid_t pid_ = 0;
};

/// Sends requests with so many under way at a time and collects whole answers, in order of
/// requests.
struct answer {
  std::vector<gpu::token_id> tokens;
  std::string text;
  cluster::completion_piece last;
};
std::vector<answer> ask(cluster::client& client, const std::string& gateway,
                        const std::vector<cluster::completion_request>& requests,
                        std::size_t concurrency);

/// Prompts of all kinds of the embedded model: the golden texts and pieces of them.
std::vector<std::string> some_prompts(std::size_t count);

}  // namespace eldr::testing
