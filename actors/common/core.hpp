#pragma once
/// The shape of every actor: a core that handles one event at a time and acts on the world only
/// through its context. Cores know nothing of CAF, threads, clocks or sockets, so they run the same
/// in a node, a test and a simulation; actors/common/host.hpp puts them into CAF actors.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "actors/common/event.hpp"
#include "messages/transport.hpp"

namespace eldr::actors {

class core;

/// A core's way to the world. Calls are made from within core::handle only.
class context {
 public:
  virtual ~context() = default;
  /// Monotonic time; virtual in a simulation.
  virtual std::int64_t now_ns() const = 0;
  virtual std::uint64_t random() = 0;
  virtual messages::transport& transport() = 0;
  /// Own address; may be kept and used from other threads.
  virtual actor_ref self() = 0;
  /// Asks for a `wake` at or after `due_ns`. Several requests may be merged; a wake may come for
  /// none (the core looks at its own deadlines).
  virtual void wake_at(std::int64_t due_ns) = 0;
  /// Starts another actor on this node.
  virtual actor_ref spawn(const std::string& name, std::unique_ptr<core> core) = 0;
  /// Ends this actor once the current event has been handled.
  virtual void quit() = 0;
};

class core {
 public:
  virtual ~core() = default;
  /// Called once, before the first event.
  virtual void start(context&) {}
  /// One event. A kj::Exception let out while handling `incoming` means malformed bytes: the
  /// session is closed and the actor goes on.
  virtual void handle(context&, event&) = 0;
};

/// Sends `out` on a session; the end event of a session tells of failures, so the result is not
/// looked at.
inline void send(context& ctx, messages::session_id session, messages::outgoing_ptr out) {
  (void)ctx.transport().send(session, std::move(out));
}

/// The earliest of several deadlines, and a wake for it.
class deadline_set {
 public:
  void add(std::int64_t due_ns) {
    if (!next_ || due_ns < *next_) {
      next_ = due_ns;
    }
  }
  void add(const std::optional<std::int64_t>& due_ns) {
    if (due_ns) {
      add(*due_ns);
    }
  }
  void arm(context& ctx) const {
    if (next_) {
      ctx.wake_at(*next_);
    }
  }

 private:
  std::optional<std::int64_t> next_;
};

}  // namespace eldr::actors
