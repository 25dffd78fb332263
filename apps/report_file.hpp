#pragma once
/// The fit report as a file.

#include <filesystem>

#include "fit/artifact.hpp"

namespace eldr::apps {

/// Writes the report as an HTML page; does nothing for an empty name. Throws std::runtime_error.
void write_report_page(const fit::artifact& routing, const std::filesystem::path& file);

}  // namespace eldr::apps
