#pragma once
/// The part of the fit that is decided by rho: which representation and which layers.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fit/artifact.hpp"
#include "fit/counts.hpp"
#include "fit/fit.hpp"

namespace eldr::fit {

/// Indices into the splits of a fit, in the order of split_names.
enum split_index : std::size_t { train_split, validation_split, test_split };

struct request_splits {
  std::array<std::vector<std::uint32_t>, splits> requests;  ///< Each ascending.
  std::vector<std::uint32_t> calibration;                   ///< Train and validation, ascending.
};

/// Deals the requests out by seed. Needs at least fit_requests_min of them.
request_splits split_requests(std::uint32_t requests, const fit_options& options);

struct transform_selection {
  representation kind = representation::count;
  std::vector<std::uint32_t> mask;  ///< Layers used, ascending.
  std::vector<float> idf;           ///< [layers][experts], over the calibration requests.
  std::vector<split_size> split_sizes;
  std::vector<representation_score> scores;
  std::vector<mask_point> mask_curve;
  representation_score masked_score;
  bool mask_kept = false;
  std::vector<std::string> warnings;
};

/// Scores every representation over all layers, takes the eligible one with the best validation
/// rho, searches its layer mask on the train split and keeps the mask if validation rho gains
/// enough. Throws fit_error when a split has fewer than 3 requests that decode, or when no
/// representation is eligible.
transform_selection select_transform(const trace_counts& counts, const request_splits& dealt,
                                     const fit_options& options);

/// Whether the request's signature has a direction (is not zero) over the given layers.
bool has_direction(const trace_counts& counts, std::uint32_t request, representation kind,
                   std::span<const float> idf, std::span<const std::uint32_t> layers);

}  // namespace eldr::fit
