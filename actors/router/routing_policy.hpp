#pragma once
/// How a decode worker is chosen. Pure; every policy is deterministic in its seed and its inputs.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/common/ids.hpp"
#include "fit/artifact.hpp"

namespace eldr::actors {

/// A decode worker that may take the request.
struct decode_candidate {
  std::string_view node;
  std::int32_t slot = -1;       ///< Centroid slot that it keeps; -1: none, a spare.
  std::uint32_t in_flight = 0;  ///< Requests there, those on their way included.
  std::uint32_t blocks_free = 0;
};

/// What is known of the request.
struct routing_request {
  attempt_key key;
  /// Block sums [layers][experts], uint16 little-endian, as they came; empty: no signature.
  std::span<const std::byte> signature;
  std::uint32_t tokens = 0;
  std::string_view label;
};

/// Why a worker was chosen, for people. Filled by policies without allocation.
struct decision {
  static constexpr std::size_t candidates_max = 64;

  enum class ground : std::uint8_t {
    load,          ///< The policy looks at load only.
    band,          ///< Least loaded of those within tau of the most similar.
    widened,       ///< The same; too few were within tau, so the nearest were taken.
    cost,          ///< Least expected cost (union).
    label,         ///< By the request's label (domain).
    no_signature,  ///< It should have looked at the signature, but there is none: by load.
    zero_norm,     ///< Likewise: the signature has no direction.
  };
  struct entry {
    std::int32_t slot = -1;
    std::uint32_t load = 0;
    float similarity = 0;  ///< Of its best slot; 0 where the policy has none.
    float cost = 0;        ///< union only.
    bool in_band = false;
  };

  ground why = ground::load;
  std::uint32_t count = 0;   ///< Entries; candidates beyond candidates_max are not shown.
  std::uint32_t chosen = 0;  ///< Index of the candidate.
  std::array<entry, candidates_max> entries{};
};
std::string_view to_string(decision::ground) noexcept;

class routing_policy {
 public:
  virtual ~routing_policy() = default;
  virtual std::string_view name() const noexcept = 0;
  /// Index into `candidates`, which are not empty and ordered by node name; `why` is filled in.
  virtual std::size_t choose(const routing_request&, std::span<const decode_candidate>,
                             decision& why) = 0;

  /// The request just chosen for was sent to `node`.
  virtual void placed(const attempt_key&, std::string_view /*node*/) {}
  /// A request that was placed on `node` has ended there.
  virtual void ended(const attempt_key&, std::string_view /*node*/) {}
  /// `node` is gone, with all that was placed on it.
  virtual void lost(std::string_view /*node*/) {}
  /// A step of `batch` sequences that read `experts` distinct experts over all layers took
  /// `step_us`.
  virtual void observed_step(std::uint32_t /*batch*/, float /*experts*/, float /*step_us*/) {}
};

/// What policies are made of besides their name.
struct policy_options {
  std::uint64_t seed = 1;
  float tau = 0.1F;                  ///< Band of eldr, in cosine similarity.
  float union_tau = 0.25F;           ///< Band of union-band.
  std::uint32_t candidates_min = 2;  ///< A narrower band is widened to this many; eldr, union-band.
  std::uint32_t decode_nodes = 1;    ///< Of the manifest: node i keeps slots i, i + N, i + 2N ...
  std::shared_ptr<const fit::artifact> artifact;
  std::uint32_t layers = 0;  ///< Of the model; for union.
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
};

/// Names that make_policy knows.
std::span<const std::string_view> policy_names();
/// Whether the policy cannot work without an artifact.
bool needs_artifact(std::string_view name);

/// Throws std::invalid_argument: an unknown name (the known ones are listed), or an artifact that
/// is needed and missing.
std::unique_ptr<routing_policy> make_policy(std::string_view name, const policy_options&);

/// Uniform in [0, n), n < 2^32: the same on every standard library.
template <class Rng>
std::size_t draw_below(Rng& rng, std::size_t n) {
  return static_cast<std::size_t>(((rng() >> 32) * n) >> 32);
}

}  // namespace eldr::actors
