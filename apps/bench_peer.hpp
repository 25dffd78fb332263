#pragma once
/// The second process of the network benchmarks: it answers messages, through actors and raw, and
/// offers memory to read.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/bench_process.hpp"
#include "apps/bench_raw_ucx.hpp"
#include "apps/commands.hpp"
#include "messages/protocol.capnp.h"
#include "messages/transport.hpp"

namespace eldr::apps {

/// Where a message of the benchmark is handled, at both ends.
enum class bench_path : std::uint8_t { scheduler, progress };
/// Actor at the peer that answers, and the one here that it answers to.
wire::ActorKind echo_kind(bench_path);
wire::ActorKind reply_kind(bench_path);

/// A Handoff whose signature is `data`.
messages::outgoing_ptr make_bench_message(wire::ActorKind to, std::span<const std::byte> data);

/// What the peer's memory holds in the 8 bytes at `offset`, a multiple of 8.
constexpr std::uint64_t bench_word(std::uint64_t offset) {
  return (offset + 1) * 0x9e3779b97f4a7c15u;
}

/// Stops a transport before what its events go to is gone, however a function ends.
struct transport_stopper {
  messages::transport& transport;
  ~transport_stopper() { transport.stop(); }
};

/// This process's end of UCX without anything above it, the peer, and a transport towards it.
class bench_pair {
 public:
  struct setup {
    bool shared_memory = false;
    std::size_t memory_bytes = 0;  ///< To be read by the transport, and as much by raw UCX.
    std::uint32_t gets_in_flight = messages::transport_limits{}.gets_in_flight;
  };
  /// Starts the peer. Throws std::runtime_error.
  bench_pair(const setup&, interruption&);

  raw_ucx& raw() noexcept { return raw_; }
  messages::transport& transport() noexcept { return *transport_; }
  /// For transport().dial().
  const std::string& peer_address() const noexcept { return peer_address_; }

 private:
  raw_ucx raw_;
  std::string token_;
  own_process peer_;
  std::string peer_address_;
  std::unique_ptr<messages::transport> transport_;
};

/// `eldr bench peer`, the other process; not for people.
void add_bench_peer(CLI::App& bench, command& chosen);

}  // namespace eldr::apps
