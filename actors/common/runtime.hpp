#pragma once
/// Puts cores into CAF actors. The only place of the project that knows CAF, so that its headers
/// are compiled once.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/common/core.hpp"

namespace eldr::actors {

/// What differs between a node, a test and a simulation.
struct environment {
  std::function<std::int64_t()> now_ns;
  std::function<std::uint64_t()> random;
  messages::transport* transport = nullptr;
  /// An actor let an exception out and is dead; a node ends over it.
  std::function<void(const std::string& actor, const std::string& what)> on_fault;
};

/// The actors of one node. In `threads` mode they run on CAF's scheduler (policy sharing) and
/// delays are real; in `driven` mode nothing runs until the driver says so and time is the
/// driver's.
class runtime {
 public:
  enum class mode : std::uint8_t { threads, driven };

  runtime(environment, mode, std::uint32_t threads = 1);
  /// Ends all actors. The transport must have stopped (or died) before.
  ~runtime();
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;

  /// Where an actor's handlers run. `progress`: on the thread that delivers the event, without a
  /// hop to a scheduler thread, whenever the event comes through deliver(); only for actors whose
  /// handlers are short. Such an actor may still run on a scheduler thread (after a delayed
  /// message), never on two at once.
  enum class execution : std::uint8_t { scheduler, progress };

  /// After stop() nothing is started; the address leads nowhere.
  actor_ref spawn(const std::string& name, std::unique_ptr<core>,
                  execution where = execution::scheduler);

  /// Runs `put_events` (which puts events into mailboxes) on the calling thread, and then the
  /// `progress` actors that got mail, 64 turns at most; what is left goes to the scheduler.
  void deliver(const std::function<void()>& put_events);

  /// Ends all actors, handling nothing more, and waits for them.
  void stop();

  // Driven mode only.

  /// Jobs (actors with mail) that could run now.
  std::size_t runnable() const;
  /// Runs one handler of job `index` (one message, so that others may come in between).
  void run_one(std::size_t index);
  /// Earliest delayed message, as a delay from now.
  std::optional<std::int64_t> next_timeout_ns() const;
  /// Moves this node's clock forward by `delta_ns`; due messages go to their mailboxes.
  void advance(std::int64_t delta_ns);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace eldr::actors
