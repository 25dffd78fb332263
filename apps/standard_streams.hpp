#pragma once
/// Standard streams that may be closed, full, or without a reader.

namespace eldr::apps {

/// Call first. Streams that the caller has closed are opened so that their numbers cannot fall to
/// sockets and files; reading and writing them fails.
void open_standard_streams() noexcept;

/// Call last. Flushes standard output; throws std::runtime_error if what was printed did not
/// arrive.
void finish_standard_output();

}  // namespace eldr::apps
