#pragma once
/// The transport between processes: active messages and one-sided reads over UCX, sessions opened
/// through a small TCP listener that checks the cluster's token.

#include <memory>
#include <string>

#include "messages/transport.hpp"

namespace eldr::messages {

struct ucx_options {
  std::string token;               ///< The cluster's secret; empty is refused.
  bool shared_memory = false;      ///< Let UCX use shared memory beside tcp.
  std::uint32_t spin_us = 100;     ///< Busy wait (with sched_yield) before the thread sleeps.
  std::string route_to;            ///< For a node without an address of its own: a peer that it
                                   ///< will dial, which tells the network. Empty: this host.
  transport_limits limits;
};

/// Creates the transport of node `id`. Its one progress thread starts with start() and owns the
/// UCX worker. Throws std::runtime_error if UCX cannot be initialised.
std::unique_ptr<transport> make_ucx_transport(identity id, ucx_options options);

}  // namespace eldr::messages
