#pragma once
/// The fit report for people. Everything in it comes from the artifact, so it can be printed for a
/// file as well as after a fit.

#include <string>

#include "fit/artifact.hpp"

namespace eldr::fit {

/// Plain text, at most 100 columns wide unless labels are long.
std::string report_text(const artifact& routing);

/// One self-contained HTML page with SVG plots; light or dark as the reader's system asks, and fit
/// for printing.
std::string report_html(const artifact& routing);

/// The labels of a cluster in a few words: "law 12, code 3, 2 others".
std::string describe_labels(const std::vector<label_count>& labels, std::size_t shown_max);

/// Layers as ranges: "0-3, 7".
std::string describe_layers(const std::vector<std::uint32_t>& layers);

}  // namespace eldr::fit
