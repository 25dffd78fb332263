#pragma once
/// One node as a process: what `eldr node` runs.

#include "cluster/manifest.hpp"

namespace eldr::cluster {

/// Runs a node until SIGINT or SIGTERM (finishes what runs, then ends; a second one ends at once)
/// or a Shutdown message. `ready_fd` >= 0: reports there when the node is ready, or why it never
/// will be (cluster/readiness.hpp). Returns the exit code. Throws std::exception with one sentence
/// if the node cannot start.
int run_node(const manifest&, const node_spec&, int ready_fd);

}  // namespace eldr::cluster
