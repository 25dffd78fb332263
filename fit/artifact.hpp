#pragma once
/// The routing artifact: everything that a router needs to route by expert locality, in one file.
///
/// File: "ELDRFIT\0", uint32 version, uint32 zero, uint64 bytes of the payload, uint64 XXH3 of the
/// payload (all little endian), then the payload, a Cap'n Proto message (artifact.capnp).

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fit/representation.hpp"

namespace eldr::fit {

inline constexpr std::uint32_t artifact_version = 1;
inline constexpr std::size_t splits = 3;
inline constexpr std::array<std::string_view, splits> split_names = {"train", "validation", "test"};

struct label_count {
  std::string label;  ///< Empty: unlabelled.
  std::uint32_t requests = 0;
};

struct split_size {
  std::uint32_t requests = 0;
  std::uint32_t pairs = 0;
};

struct representation_score {
  representation kind = representation::count;
  std::array<double, splits> rho{};  ///< NaN where undefined.
  std::uint32_t zero_norm = 0;       ///< Calibration requests without a direction.
  bool eligible = false;             ///< May enter the artifact.
};

struct mask_point {
  std::uint32_t layer = 0;
  double train_rho = 0;
  double validation_rho = 0;
};

struct cluster_summary {
  std::uint32_t requests = 0;
  std::vector<label_count> labels;  ///< Most frequent first.
  double slot_union = 0;            ///< Expected distinct experts per layer in a batch of the slot.
  double random_union = 0;          ///< The same requests in random batches.
};

/// What the fit found, for people; nothing here takes part in routing.
struct fit_report {
  std::array<split_size, splits> split{};
  std::vector<representation_score> scores;  ///< All layers.
  std::vector<mask_point> mask_curve;
  representation_score masked_score;  ///< The chosen representation under the best mask.
  bool mask_kept = false;
  std::vector<cluster_summary> clusters;
  double objective = 0;  ///< Mean cosine of a calibration request with its centroid.
  double vanilla_objective = 0;
  std::vector<std::uint32_t> vanilla_sizes;
  std::uint32_t union_batch = 0;
  double held_out_slot_union = 0;    ///< A test request with a batch of its nearest slot ...
  double held_out_random_union = 0;  ///< ... and with a random batch.
  std::vector<std::string> warnings;
};

struct artifact {
  std::string model;  ///< May be empty.
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
  std::uint32_t block_tokens = 0;

  representation kind = representation::count;
  std::vector<std::uint32_t> mask;  ///< Layers used, ascending.
  std::vector<float> weights;       ///< [mask][experts] for count_idf, else empty.

  std::uint32_t slots = 0;               ///< K
  std::vector<float> centroids;          ///< [slots][mask][experts], unit length.
  std::vector<float> vanilla_centroids;  ///< Likewise.
  std::vector<float> cluster_patterns;   ///< [slots][layers][experts]
  std::vector<float> global_pattern;     ///< [layers][experts]

  std::uint32_t ep_ranks = 1;
  std::vector<std::uint16_t> ep_rank_of;  ///< [slots][layers][experts]; empty for one rank.

  std::vector<label_count> labels;  ///< Of calibration requests, most frequent first.
  fit_report report;

  std::string tool_version;
  std::uint64_t trace_digest = 0;
  std::string trace_source;
  std::uint32_t trace_requests = 0;
  std::uint32_t calibration_requests = 0;
  std::uint64_t seed = 0;
};

/// The file's bytes; the same artifact always gives the same bytes.
std::vector<std::byte> serialize_artifact(const artifact& value);
/// Throws fit_error when the bytes are truncated, corrupt, of a newer version or inconsistent.
/// `name` is used in errors.
artifact parse_artifact(std::span<const std::byte> file, std::string_view name);

/// Writes to a file beside `path` and renames it, so that a reader sees the old or the new one.
void save_artifact(const artifact& value, const std::filesystem::path& path);
artifact load_artifact(const std::filesystem::path& path);

/// Throws fit_error that names everything in which the artifact does not fit the model.
void check_artifact_fits(const artifact& value, std::uint32_t layers, std::uint32_t experts,
                         std::uint32_t experts_per_token, std::uint32_t block_tokens);

}  // namespace eldr::fit
