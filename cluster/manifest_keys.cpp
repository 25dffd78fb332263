#include "cluster/manifest_keys.hpp"

#include <fmt/format.h>

#include <array>

namespace eldr::cluster {
namespace {

constexpr std::array<std::string_view, 4> roles{"gateway", "router", "prefill", "decode"};
constexpr std::array<std::string_view, 2> dtypes{"f32", "bf16"};
constexpr std::array<std::string_view, 10> policies{"rr",    "random",    "jsq",          "p2c",
                                                    "eldr",  "eldr-top1", "eldr-vanilla", "domain",
                                                    "union", "union-band"};
constexpr std::array<std::string_view, 6> log_levels{"trace", "debug", "info",
                                                     "warn",  "error", "off"};

constexpr std::uint32_t hour_ms = 3'600'000;
constexpr std::uint32_t queue_max = 65'536;
constexpr std::uint32_t bytes_max = 1u << 30;

// Each row of the table names a member once; these spell the access to it.
#define ELDR_AT(member)       \
  [](manifest & m) -> auto& { \
    return m.member;          \
  }
#define ELDR_TEXT_CHOICE(words, member)                                    \
  choice_value {                                                           \
    words, [](const manifest& m) -> std::string_view { return m.member; }, \
        [](manifest& m, std::string_view word) { m.member = word; }        \
  }

constexpr choice_value dtype_choice{
    dtypes, [](const manifest& m) { return dtypes.at(m.kv.dtype == gpu::kv_dtype::bf16 ? 1 : 0); },
    [](manifest& m, std::string_view word) {
      m.kv.dtype = word == "bf16" ? gpu::kv_dtype::bf16 : gpu::kv_dtype::f32;
    }};

constexpr std::array keys{
    manifest_key{"name", text_value{ELDR_AT(name), "letters, digits, `.` `_` `-`"},
                 "Name of the cluster, for people."},
    manifest_key{"model", text_value{ELDR_AT(model), "folder"},
                 "`tiny-moe` is the embedded model; anything else is a folder, relative to the "
                 "manifest, with `config.json`, `model.safetensors` and `tokenizer.json`."},
    manifest_key{"token_file", text_value{ELDR_AT(token_file), "path"},
                 "The cluster's secret, relative to the manifest; `eldr up` creates it."},
    manifest_key{"log_level", ELDR_TEXT_CHOICE(log_levels, log_level),
                 "Least severe events that nodes log."},
    manifest_key{"engine_threads", number_value{ELDR_AT(engine_threads), 1, 256, "threads"},
                 "Threads that a worker's engine computes with."},

    manifest_key{"kv.block_tokens", number_value{ELDR_AT(kv.block_tokens), 1, 127, "tokens"},
                 "Size of a KV block. A signature cell is an int8, hence the limit."},
    manifest_key{"kv.blocks", number_value{ELDR_AT(kv.blocks), 1, 1u << 24, "blocks"},
                 "KV blocks in each worker's pool."},
    manifest_key{"kv.dtype", dtype_choice, "How KV is stored. `f32` reproduces the model best."},

    manifest_key{"policy.name", ELDR_TEXT_CHOICE(policies, policy.name),
                 "How the router chooses the decode worker."},
    manifest_key{"policy.seed", seed_value{ELDR_AT(policy.seed)},
                 "Seed of the policy's random choices."},
    manifest_key{"policy.artifact", text_value{ELDR_AT(policy.artifact), "path"},
                 "Routing artifact (`eldr fit`), relative to the manifest; `none` for none. The "
                 "`eldr` policies, `domain` and `union-band` need one."},
    manifest_key{"policy.tau", fraction_value{ELDR_AT(policy.tau), 0, 2},
                 "Band of the `eldr` policies: similarity to the best that still counts as near."},
    manifest_key{"policy.union_tau", fraction_value{ELDR_AT(policy.union_tau), 0, 2},
                 "The same for `union-band`."},
    manifest_key{
        "policy.candidates_min", number_value{ELDR_AT(policy.candidates_min), 1, 1024, "workers"},
        "A narrower band is widened to this many workers. With few workers 1 keeps more of "
        "the locality."},

    manifest_key{"limits.requests_max",
                 number_value{ELDR_AT(limits.requests_max), 1, queue_max, ""},
                 "Live requests per gateway; more are refused with a retry hint."},
    manifest_key{"limits.prefill_queue_max",
                 number_value{ELDR_AT(limits.prefill_queue_max), 1, queue_max, ""},
                 "Tasks that may wait at a prefill worker."},
    manifest_key{"limits.decode_queue_max",
                 number_value{ELDR_AT(limits.decode_queue_max), 1, queue_max, ""},
                 "Tasks that may wait at a decode worker."},
    manifest_key{"limits.decode_batch_max",
                 number_value{ELDR_AT(limits.decode_batch_max), 1, 1024, "sequences"},
                 "Sequences in one decode step."},
    manifest_key{
        "limits.prefill_chunk_tokens",
        number_value{ELDR_AT(limits.prefill_chunk_tokens), 1, 65'535, "tokens"},
        "Most prompt tokens in one prefill step, rounded down to whole blocks, at least one."},
    manifest_key{"limits.retries_max",
                 number_value{ELDR_AT(limits.retries_max), 0, 100, "attempts"},
                 "New attempts that a request may make after its first."},
    manifest_key{"limits.router_queue_max",
                 number_value{ELDR_AT(limits.router_queue_max), 1, queue_max, ""},
                 "Requests that a router holds while it cannot place them."},
    manifest_key{"limits.client_buffer_bytes_max",
                 number_value{ELDR_AT(limits.client_buffer_bytes_max), 4096, bytes_max, "bytes"},
                 "Output held for a client that does not read; past it the client is cut off."},
    manifest_key{"limits.frame_bytes_max",
                 number_value{ELDR_AT(limits.frame_bytes_max), 65'536, 64u << 20, "bytes"},
                 "Largest message between nodes."},
    manifest_key{"limits.peer_queue_bytes_max",
                 number_value{ELDR_AT(limits.peer_queue_bytes_max), 65'536, bytes_max, "bytes"},
                 "Messages queued for one peer; past it the session ends."},
    manifest_key{"limits.peer_queue_frames_max",
                 number_value{ELDR_AT(limits.peer_queue_frames_max), 16, 1u << 20, "frames"},
                 "Bulk messages queued for one peer, likewise."},
    manifest_key{"limits.peer_reserved_frames_max",
                 number_value{ELDR_AT(limits.peer_reserved_frames_max), 16, 1u << 20, "frames"},
                 "The same for the small messages that bulk traffic must not hold up."},
    manifest_key{"limits.credit_frames",
                 number_value{ELDR_AT(limits.credit_frames), 1, queue_max, "frames"},
                 "Bulk messages in flight per session and direction."},
    manifest_key{"limits.gets_in_flight",
                 number_value{ELDR_AT(limits.gets_in_flight), 1, 256, "reads"},
                 "One-sided reads in flight per KV pull."},

    manifest_key{"timeouts.heartbeat_ms",
                 number_value{ELDR_AT(timeouts.heartbeat_ms), 10, 60'000, "ms"},
                 "Interval of heartbeats."},
    manifest_key{"timeouts.health_deadline_ms",
                 number_value{ELDR_AT(timeouts.health_deadline_ms), 500, 600'000, "ms"},
                 "A peer that is silent for longer is taken for dead."},
    manifest_key{"timeouts.dial_ms", number_value{ELDR_AT(timeouts.dial_ms), 100, 60'000, "ms"},
                 "Until an attempt to reach a peer is given up."},
    manifest_key{"timeouts.lease_ms", number_value{ELDR_AT(timeouts.lease_ms), 100, hour_ms, "ms"},
                 "How long a prefill worker keeps KV blocks for a decode worker. Must exceed "
                 "`route_ms + queue_ms + pull_ms`."},
    manifest_key{"timeouts.route_ms", number_value{ELDR_AT(timeouts.route_ms), 10, hour_ms, "ms"},
                 "Until a request must have been placed on a worker."},
    manifest_key{"timeouts.queue_ms", number_value{ELDR_AT(timeouts.queue_ms), 10, hour_ms, "ms"},
                 "Longest wait in a worker's queue."},
    manifest_key{"timeouts.pull_ms", number_value{ELDR_AT(timeouts.pull_ms), 10, hour_ms, "ms"},
                 "Until a decode worker must have read the KV blocks."},
    manifest_key{"timeouts.prefill_ms",
                 number_value{ELDR_AT(timeouts.prefill_ms), 10, hour_ms, "ms"},
                 "Until a prefill must have finished."},
    manifest_key{"timeouts.decode_progress_ms",
                 number_value{ELDR_AT(timeouts.decode_progress_ms), 10, hour_ms, "ms"},
                 "Longest gap between two tokens."},
    manifest_key{"timeouts.total_ms",
                 number_value{ELDR_AT(timeouts.total_ms), 100, 24 * hour_ms, "ms"},
                 "Longest life of a request."},
    manifest_key{"timeouts.settle_ms", number_value{ELDR_AT(timeouts.settle_ms), 0, hour_ms, "ms"},
                 "How long a starting router waits for workers that have not reported."},
    manifest_key{"timeouts.drain_ms", number_value{ELDR_AT(timeouts.drain_ms), 0, hour_ms, "ms"},
                 "Time for running requests to finish when a node stops."},

    manifest_key{"transport.shared_memory", flag_value{ELDR_AT(transport.shared_memory)},
                 "Lets nodes on one host use shared memory beside TCP."},
    manifest_key{"transport.spin_us", number_value{ELDR_AT(transport.spin_us), 0, 1'000'000, "µs"},
                 "Busy wait for messages before a node sleeps."},
};

#undef ELDR_TEXT_CHOICE
#undef ELDR_AT

constexpr std::array node_table{
    node_key{"name", "lower-case letters, digits, `-`; at most 32", "required",
             "Unique in the cluster; must not begin with `client`."},
    node_key{"role", "`gateway`, `router`, `prefill`, `decode`", "required",
             "What the node does. Each role is needed at least once."},
    node_key{"listen", "`host:port` or `port`", "host `127.0.0.1`",
             "Where the node listens and others reach it; the port is required."},
    node_key{"count", "1..1024", "absent",
             "Shorthand for that many nodes: names get `-1`, `-2` ..., ports count up."},
    node_key{"cores", "list of CPU numbers", "any",
             "CPUs that the node runs on; not together with `count`."},
};

template <class... F>
struct overloaded : F... {
  using F::operator()...;
};

std::string joined_words(std::span<const std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) {
    text += fmt::format("{}`{}`", text.empty() ? "" : ", ", word);
  }
  return text;
}

std::string values_text(const manifest_key& key) {
  return std::visit(
      overloaded{[](const number_value& v) {
                   return fmt::format("{}..{}{}{}", v.min, v.max, v.unit.empty() ? "" : " ",
                                      v.unit);
                 },
                 [](const seed_value&) { return std::string("0..2⁶⁴−1"); },
                 [](const fraction_value& v) { return fmt::format("{}..{}", v.min, v.max); },
                 [](const flag_value&) { return std::string("`true`, `false`"); },
                 [](const text_value& v) { return std::string(v.meaning); },
                 [](const choice_value& v) { return joined_words(v.words); }},
      key.value);
}

}  // namespace

std::string_view manifest_key::section() const {
  const std::size_t dot = path.find('.');
  return dot == std::string_view::npos ? std::string_view{} : path.substr(0, dot);
}

std::string_view manifest_key::leaf() const {
  const std::size_t dot = path.find('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::span<const manifest_key> manifest_keys() {
  return keys;
}
std::span<const node_key> node_keys() {
  return node_table;
}
std::span<const std::string_view> role_words() {
  return roles;
}

std::string value_text(const manifest_key& key, const manifest& m) {
  // The accessors serve reading and writing; nothing is written here.
  auto& target = const_cast<manifest&>(m);
  return std::visit(
      overloaded{[&](const number_value& v) { return std::to_string(v.at(target)); },
                 [&](const seed_value& v) { return std::to_string(v.at(target)); },
                 [&](const fraction_value& v) { return fmt::format("{}", v.at(target)); },
                 [&](const flag_value& v) { return std::string(v.at(target) ? "true" : "false"); },
                 [&](const text_value& v) { return v.at(target); },
                 [&](const choice_value& v) { return std::string(v.get(m)); }},
      key.value);
}

std::string key_reference() {
  constexpr std::string_view head = "| key | values | default | meaning |\n|---|---|---|---|\n";
  std::string text(head);
  const manifest defaults;
  for (const manifest_key& key : keys) {
    text += fmt::format("| `{}` | {} | `{}` | {} |\n", key.path, values_text(key),
                        value_text(key, defaults), key.description);
  }
  text += fmt::format("\nEach element of `nodes`:\n\n{}", head);
  for (const node_key& key : node_table) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", key.name, key.values, key.default_text,
                        key.description);
  }
  return text;
}

}  // namespace eldr::cluster
