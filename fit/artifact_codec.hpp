#pragma once
/// The artifact's payload: between the struct and Cap'n Proto bytes.

#include <cstddef>
#include <span>
#include <vector>

#include "fit/artifact.hpp"

namespace eldr::fit {

/// A framed Cap'n Proto message of one segment.
std::vector<std::byte> encode_artifact(const artifact& value);

/// Throws fit_error, whose text is a clause, when the message is malformed or when sizes and values
/// in it do not agree. Any bytes are safe.
artifact decode_artifact(std::span<const std::byte> payload);

}  // namespace eldr::fit
