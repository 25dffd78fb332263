#pragma once
/// Events in virtual time: run in order of due time, ties by seed, unless something holds them up.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

namespace eldr::messages {

/// Whether an event may run: held events wait, void ones never run.
enum class gate_state : std::uint8_t { open, held, void_ };

class virtual_events {
 public:
  using gate = std::function<gate_state()>;
  using action = std::function<void()>;

  explicit virtual_events(std::uint64_t seed) : random_(seed) {}
  virtual_events(const virtual_events&) = delete;
  virtual_events& operator=(const virtual_events&) = delete;

  std::int64_t now_ns() const noexcept { return now_ns_; }
  /// Moves the clock; never back.
  void set_now(std::int64_t now_ns) noexcept { now_ns_ = std::max(now_ns_, now_ns); }

  void schedule(std::int64_t due_ns, gate, action);
  /// Due time of the first event that is not held.
  std::optional<std::int64_t> next_due_ns() const;
  /// Runs the first event if it is due by then, at its due time.
  bool run_next(std::int64_t until_ns);
  /// To be called when the answer of any gate may have changed. Events that were held and are
  /// overdue become due now.
  void recheck();

  /// A number in [low, high], the same on every platform.
  std::int64_t draw(std::int64_t low, std::int64_t high);

 private:
  using key = std::tuple<std::int64_t, std::uint64_t, std::uint64_t>;  // Due, tie, number.
  struct event {
    gate allowed;
    action run;
  };
  using entry = std::pair<key, event>;

  std::int64_t now_ns_ = 0;
  std::mt19937_64 random_;
  std::uint64_t count_ = 0;
  std::map<key, event> ready_;
  std::vector<entry> held_;
};

}  // namespace eldr::messages
