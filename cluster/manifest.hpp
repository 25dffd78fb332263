#pragma once
/// The manifest: one YAML file that describes a cluster. docs/manifest.md lists every key; the
/// table behind it is in cluster/manifest_keys.hpp.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::cluster {

enum class node_role : std::uint8_t { gateway, router, prefill, decode };
std::string_view to_string(node_role) noexcept;

/// One node of the cluster: one process.
struct node_spec {
  std::string name;  ///< [a-z0-9-]{1,32}, unique, not beginning with "client".
  node_role role = node_role::gateway;
  std::string host = "127.0.0.1";    ///< IPv4 address or host name, as other nodes dial it.
  std::uint16_t port = 0;            ///< Never 0 in a manifest that was read.
  std::vector<std::uint32_t> cores;  ///< CPUs to run on; empty: wherever the system likes.

  /// "host:port".
  std::string address() const;
  bool operator==(const node_spec&) const = default;
};

struct kv_options {
  std::uint32_t block_tokens = 16;  ///< At most 127: a signature cell is an int8.
  std::uint32_t blocks = 1024;      ///< Per worker.
  gpu::kv_dtype dtype = gpu::kv_dtype::f32;
  bool operator==(const kv_options&) const = default;
};

struct policy_options {
  std::string name = "jsq";
  std::uint64_t seed = 1;
  std::string artifact = "none";     ///< Path relative to the manifest, or "none".
  float tau = 0.1F;                  ///< Band of the eldr policies, in cosine similarity.
  float union_tau = 0.25F;           ///< Band of union-band.
  std::uint32_t candidates_min = 2;  ///< A narrower band is widened to this many workers.
  bool operator==(const policy_options&) const = default;
};

struct limit_options {
  std::uint32_t requests_max = 256;          ///< Live requests per gateway.
  std::uint32_t prefill_queue_max = 64;      ///< Waiting tasks per prefill worker.
  std::uint32_t decode_queue_max = 64;       ///< Waiting tasks per decode worker.
  std::uint32_t decode_batch_max = 16;       ///< Sequences in a decode step.
  std::uint32_t prefill_chunk_tokens = 256;  ///< Of a prompt in one step; rounded down to blocks.
  std::uint32_t retries_max = 3;             ///< New attempts after the first.
  std::uint32_t router_queue_max = 1024;     ///< Submits held by a router.
  std::uint32_t client_buffer_bytes_max = 1u << 20;
  std::uint32_t frame_bytes_max = 1u << 20;
  std::uint32_t peer_queue_bytes_max = 64u << 20;
  std::uint32_t peer_queue_frames_max = 16384;
  std::uint32_t peer_reserved_frames_max = 4096;
  std::uint32_t credit_frames = 256;  ///< Bulk frames in flight per session and direction.
  std::uint32_t gets_in_flight = 8;   ///< One-sided reads in flight per pull.
  bool operator==(const limit_options&) const = default;
};

struct timeout_options {
  std::uint32_t heartbeat_ms = 250;
  std::uint32_t health_deadline_ms = 1000;  ///< At least 500: loaded machines stall for tens of ms.
  std::uint32_t dial_ms = 2000;
  std::uint32_t lease_ms = 30'000;
  std::uint32_t route_ms = 2000;
  std::uint32_t queue_ms = 10'000;
  std::uint32_t pull_ms = 5000;
  std::uint32_t prefill_ms = 20'000;
  std::uint32_t decode_progress_ms = 10'000;
  std::uint32_t total_ms = 120'000;
  std::uint32_t settle_ms = 2000;
  std::uint32_t drain_ms = 30'000;
  bool operator==(const timeout_options&) const = default;
};

struct transport_options {
  bool shared_memory = false;
  std::uint32_t spin_us = 100;
  bool operator==(const transport_options&) const = default;
};

/// Plain data; what load_manifest() returns has passed every check of docs/manifest.md.
struct manifest {
  std::filesystem::path folder;  ///< Of the file: where its relative paths begin.
  std::string name = "eldr";
  std::string model = "tiny-moe";
  std::string token_file = "cluster.token";
  std::string log_level = "info";
  std::uint32_t engine_threads = 1;
  kv_options kv;
  policy_options policy;
  limit_options limits;
  timeout_options timeouts;
  transport_options transport;
  std::vector<node_spec> nodes;  ///< In the file's order, `count` expanded.

  /// None if there is no such node. The pointer is into `nodes`.
  const node_spec* find(std::string_view node_name) const noexcept;
  /// Throws manifest_error, with the nearest name, if there is no such node.
  const node_spec& require(std::string_view node_name) const;
  /// In the file's order.
  std::vector<const node_spec*> with_role(node_role) const;
  std::filesystem::path token_path() const { return folder / token_file; }
  /// Of the routing artifact, if one is named.
  std::optional<std::filesystem::path> artifact_path() const {
    return policy.artifact == "none" ? std::nullopt : std::optional(folder / policy.artifact);
  }
  /// Folder of the model; none: the embedded one.
  std::optional<std::filesystem::path> model_path() const;

  bool operator==(const manifest&) const = default;
};

/// One sentence: "cluster.yaml:12:3: 'timeouts.lease_mss' is not a key of the manifest; did you
/// mean 'timeouts.lease_ms'?".
struct manifest_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads and checks a manifest. Throws manifest_error.
manifest load_manifest(const std::filesystem::path& path);

/// The same from memory; `source` stands for the file in messages and for relative paths.
manifest parse_manifest(const std::string& text, const std::filesystem::path& source);

/// The manifest as YAML with every default written out; parsing it gives an equal manifest.
std::string to_yaml(const manifest&);

}  // namespace eldr::cluster
