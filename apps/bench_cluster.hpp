#pragma once
/// Clusters that benchmarks start: `eldr up` as a child.

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "apps/bench_process.hpp"
#include "cluster/manifest.hpp"

namespace eldr::apps {

/// A folder with a manifest of the demo's shape (1 gateway, 1 router, 2 prefill, 4 decode) on free
/// ports of loopback. Removed with its owner.
class demo_folder {
 public:
  demo_folder();
  ~demo_folder();
  demo_folder(const demo_folder&) = delete;
  demo_folder& operator=(const demo_folder&) = delete;
  const std::filesystem::path& manifest() const noexcept { return manifest_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path manifest_;
};

/// The cluster of a manifest, or the demo's; stopped with its owner.
class bench_cluster {
 public:
  /// `file` empty: the demo's. Returns when all nodes are ready; throws std::runtime_error if they
  /// do not become so.
  bench_cluster(const std::filesystem::path& file, interruption&);

  const cluster::manifest& manifest() const noexcept { return manifest_; }
  /// Processes of the nodes, by name.
  std::map<std::string, pid_t> nodes() const;

 private:
  std::optional<demo_folder> demo_;
  std::filesystem::path file_;
  cluster::manifest manifest_;
  own_process up_;
};

}  // namespace eldr::apps
