#pragma once
/// Limits and deadlines of the actors, as the manifest gives them (docs/manifest.md).

#include <cstdint>
#include <string>

namespace eldr::actors {

struct settings {
  // Limits.
  std::uint32_t requests_max = 256;       ///< Live requests of a gateway.
  std::uint32_t router_queue_max = 1024;  ///< Submits held while the router settles.
  std::uint32_t prefill_queue_max = 64;   ///< Tasks waiting at a prefill worker.
  std::uint32_t decode_queue_max = 64;    ///< Tasks waiting at a decode worker.
  std::uint32_t decode_batch_max = 16;    ///< Sequences pulling, or in the decode batch.
  std::uint32_t prefill_chunk_tokens = 256;
  std::uint32_t retries_max = 3;    ///< Attempts after the first.
  std::uint32_t block_tokens = 16;  ///< Tokens of a KV block, the same on all workers.

  // Deadlines.
  std::int64_t heartbeat_ms = 250;
  std::int64_t health_deadline_ms = 1000;
  std::int64_t lease_ms = 30'000;
  std::int64_t route_ms = 2'000;             ///< Submit to Placed.
  std::int64_t queue_ms = 10'000;            ///< Waiting at a worker.
  std::int64_t prefill_ms = 20'000;          ///< Placed on prefill to the first token.
  std::int64_t pull_ms = 5'000;              ///< Pull begun to Released.
  std::int64_t decode_progress_ms = 10'000;  ///< Between tokens.
  std::int64_t total_ms = 120'000;
  std::int64_t settle_ms = 2'000;  ///< A starting router waits for its workers.
  std::int64_t drain_ms = 30'000;

  // Routing.
  std::string policy = "jsq";
  std::uint64_t policy_seed = 1;
  float tau = 0.1F;                  ///< Band of eldr, in cosine similarity.
  float union_tau = 0.25F;           ///< Band of union-band.
  std::uint32_t candidates_min = 2;  ///< A narrower band is widened to this many workers.
  std::uint32_t explain_max = 1024;  ///< Decisions remembered by a router.
};

constexpr std::int64_t ms_to_ns(std::int64_t ms) {
  return ms * 1'000'000;
}

}  // namespace eldr::actors
