#pragma once
/// What this build is.

#include <string>

namespace eldr::apps {

/// "eldr 0.1.0", compiler and backends, on a line each; no final newline.
std::string version_text();

}  // namespace eldr::apps
