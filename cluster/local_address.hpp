#pragma once
/// Which nodes of a manifest run here.

#include <string>

namespace eldr::cluster {

/// Whether `host` (IPv4 address or name) is an address of this machine, that is, whether a node
/// can listen on it here. Names that cannot be resolved are not.
bool is_local_host(const std::string& host);

}  // namespace eldr::cluster
