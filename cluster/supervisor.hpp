#pragma once
/// Starts the nodes of a cluster that run on this machine, watches them and stops them.

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cluster/child_process.hpp"
#include "cluster/line_output.hpp"
#include "cluster/signal_inbox.hpp"

namespace eldr::cluster {

/// One sentence: which node failed and why.
struct supervisor_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct supervisor_options {
  std::uint32_t drain_ms = 30'000;  ///< For children to finish after SIGTERM ...
  std::uint32_t grace_ms = 2000;    ///< ... and this much longer before SIGKILL.
  int output_fd = 2;                ///< Progress and the children's lines go here.
  bool live = false;                ///< It is a terminal: show progress in one line.
};

/// While it lives, SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked in the calling thread and read
/// as events: no handler runs. All calls from that one thread, which must outlive the children.
/// No child is left when it is destroyed.
class supervisor {
 public:
  explicit supervisor(supervisor_options options);
  supervisor(const supervisor&) = delete;
  supervisor& operator=(const supervisor&) = delete;
  /// Kills what still runs.
  ~supervisor();

  /// Starts one child per element, once. Throws supervisor_error if the system refuses.
  void start(std::span<const child_spec> specs);

  /// Waits until all children are ready: true. False if a signal to stop came first. Throws
  /// supervisor_error if one cannot start, ends, or is not ready in time.
  bool wait_ready(std::chrono::milliseconds timeout);

  enum class cause : std::uint8_t { signal, all_ended };
  /// Passes the children's output on until a signal to stop comes or none of them runs any more. A
  /// child that ends does not end the others.
  cause run_until_signal();

  /// SIGTERM to all, stage by stage; after drain_ms + grace_ms, or at another signal to stop,
  /// SIGKILL. Returns when all have ended.
  void stop();
  /// The same without time to drain, for a cluster that did not come up.
  void abort();

  std::size_t running() const noexcept;
  /// One sentence for each child that ended otherwise than with code 0, in order.
  const std::vector<std::string>& losses() const noexcept { return losses_; }

 private:
  using clock = std::chrono::steady_clock;
  enum class state : std::uint8_t { starting, ready, ended };
  static bool is_starting(state s) { return s == state::starting; }
  static bool is_running(state s) { return s != state::ended; }
  struct member {
    std::string name;
    int stop_stage = 0;
    bool told_to_stop = false;
    child_process process;
    state now = state::starting;
    std::string failure;    ///< Why it cannot start, or why it ended.
    std::string last_line;  ///< Of its output, for a child that dies without a word.
  };

  /// Waits for events until `deadline` or, on a terminal, a tenth of a second, and handles them.
  void turn(std::optional<clock::time_point> deadline);
  void read_output(member& child, std::size_t bytes_max);
  void read_readiness(member& child);
  void collect_ended();
  void note_end(member& child, int status);
  void end_all(std::uint32_t limit_ms);
  void signal_all(int number) noexcept;
  /// SIGTERM to the children of the lowest stage that still has some, those told before left out.
  void signal_next_stage() noexcept;
  void kill_all() noexcept;

  void throw_if_failed() const;
  std::size_t ready() const noexcept;
  std::string names_of(bool (*wanted)(state)) const;
  std::string elapsed() const;
  void show_progress(const std::string& text);

  supervisor_options options_;
  signal_inbox signals_;
  line_output output_;
  std::vector<member> members_;
  std::vector<std::string> losses_;
  clock::time_point started_at_;
  bool stop_requested_ = false;  ///< A signal to stop has come and has not been acted on.
  bool stopping_ = false;
};

}  // namespace eldr::cluster
