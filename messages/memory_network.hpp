#pragma once
/// The in-memory transport: a network in one process that delivers in virtual time, in an order
/// drawn from a seed, with faults. No threads, no clock: whoever drives it says what time it is.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "messages/transport.hpp"

namespace eldr::messages {

struct network_options {
  std::uint64_t seed = 1;
  std::int64_t delay_min_ns = 10'000;      ///< One-way delay of a frame, drawn per frame;
  std::int64_t delay_max_ns = 200'000;     ///< order within a session and class is kept.
  std::int64_t detect_min_ns = 1'000'000;  ///< Until a peer learns that a process died.
  std::int64_t detect_max_ns = 10'000'000;
  std::string token = "test";              ///< Peers with another token are refused.
  transport_limits limits;
};

/// Owns all links. Outlives the transports that it hands out. Single-threaded.
class memory_network {
 public:
  explicit memory_network(network_options options = {});
  ~memory_network();
  memory_network(const memory_network&) = delete;
  memory_network& operator=(const memory_network&) = delete;

  /// A node's transport, reachable at id.address once started. A node name may attach again after
  /// kill(): that is its restart (with a fresh incarnation).
  std::unique_ptr<transport> attach(identity id, std::string token = "test");

  std::int64_t now_ns() const noexcept;
  /// Due time of the next event that can be delivered, none if the network is idle (what a frozen
  /// or partitioned node holds back does not count).
  std::optional<std::int64_t> next_due_ns() const;
  /// Moves the clock to `now_ns` (never back) and delivers every event due by then, in order of due
  /// time, ties by seed. Returns how many.
  std::size_t advance_to(std::int64_t now_ns);
  /// Moves the clock to `now_ns` (never back) and delivers nothing: what is due waits for
  /// deliver_one().
  void set_now(std::int64_t now_ns);
  /// Delivers one event if one is due at or before now.
  bool deliver_one();

  // Faults. Names that are not attached are ignored.

  /// The process dies: it neither sends nor receives from now on (what it has already sent may
  /// still arrive), its memory can no longer be read, peers learn of it after the detection delay.
  void kill(const std::string& node);
  /// The process is stopped: frames to it and its own events wait; nobody is told. One-sided reads
  /// of its memory wait too (as over tcp, where the target's progress thread must run).
  void freeze(const std::string& node);
  void thaw(const std::string& node);
  /// Nothing passes between two nodes until heal(); frames are held, not lost, and nobody is told.
  void partition(const std::string& a, const std::string& b);
  void heal(const std::string& a, const std::string& b);
  /// Connection loss: the session ends at both ends, at different moments.
  void drop(const std::string& a, const std::string& b);
  /// Flips a byte in the next one-sided read that `puller` makes.
  void corrupt_next_get(const std::string& puller);

  /// Hash over all deliveries so far: equal for equal seeds and equal use.
  std::uint64_t history_hash() const noexcept;

  class impl;

 private:
  std::shared_ptr<impl> impl_;  // Frames watch it: they may outlive the network.
};

}  // namespace eldr::messages
