#pragma once
/// Base64 (RFC 4648), as JSON responses carry arrays.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eldr::fit {

/// Nothing when the text is no valid Base64. Padding may be missing.
std::optional<std::vector<std::byte>> decode_base64(std::string_view text);

}  // namespace eldr::fit
