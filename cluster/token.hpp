#pragma once
/// The cluster's secret: 32 random bytes as 64 hexadecimal digits, in a file that only its owner
/// may read.

#include <filesystem>
#include <stdexcept>
#include <string>

namespace eldr::cluster {

/// One sentence with the file's name and what to do.
struct token_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The token in `path`. Throws token_error if the file is missing, may be read by others than its
/// owner, or does not hold a token.
std::string read_token(const std::filesystem::path& path);

/// The same, but creates the file (mode 0600) with a fresh token where there is none. Of several
/// processes that do so at once one wins, and all return its token.
std::string ensure_token(const std::filesystem::path& path);

}  // namespace eldr::cluster
