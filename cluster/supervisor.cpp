#include "cluster/supervisor.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "cluster/readiness.hpp"

namespace eldr::cluster {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t turn_bytes_max = 64 * 1024;  // Of one child per turn, so that none starves.
constexpr std::size_t final_bytes_max = 1024 * 1024;  // Of a child that has ended.
constexpr milliseconds redraw{100};
constexpr milliseconds last_words{500};

}  // namespace

supervisor::supervisor(supervisor_options options)
    : options_(options), output_(options.output_fd, options.live), started_at_(clock::now()) {}

supervisor::~supervisor() {
  kill_all();
  output_.set_status("");
  output_.flush(last_words);
}

void supervisor::start(std::span<const child_spec> specs) {
  members_.reserve(specs.size());
  for (const child_spec& spec : specs) {
    try {
      members_.push_back({spec.name, spec.stop_stage, false, spawn(spec), state::starting, {}, {}});
    } catch (const std::system_error& e) {
      throw supervisor_error(fmt::format("node '{}' cannot start: {}", spec.name, e.what()));
    }
  }
}

bool supervisor::wait_ready(milliseconds timeout) {
  const auto deadline = clock::now() + timeout;
  while (ready() < members_.size()) {
    if (stop_requested_) {
      return false;
    }
    if (clock::now() >= deadline) {
      throw supervisor_error(fmt::format(
          "{} of {} nodes were not ready after {} ms: {}; their log lines above tell more",
          members_.size() - ready(), members_.size(), timeout.count(), names_of(is_starting)));
    }
    output_.set_status(fmt::format("starting: {} of {} nodes ready ({}), waiting for {}", ready(),
                                   members_.size(), elapsed(), names_of(is_starting)));
    turn(deadline);
    throw_if_failed();
  }
  output_.set_status("");
  return true;
}

supervisor::cause supervisor::run_until_signal() {
  while (!stop_requested_ && running() > 0) {
    turn(std::nullopt);
  }
  return stop_requested_ ? cause::signal : cause::all_ended;
}

void supervisor::stop() {
  end_all(options_.drain_ms + options_.grace_ms);
}

void supervisor::abort() {
  end_all(options_.grace_ms);
}

void supervisor::end_all(std::uint32_t limit_ms) {
  stopping_ = true;
  stop_requested_ = false;
  const auto deadline = clock::now() + milliseconds(limit_ms);
  bool killed = false;
  while (running() > 0) {
    if (!killed) {
      signal_next_stage();
    }
    output_.set_status(
        fmt::format("stopping: {} of {} nodes still run", running(), members_.size()));
    turn(killed ? std::nullopt : std::optional(deadline));
    if (!killed && running() > 0 && (stop_requested_ || clock::now() >= deadline)) {
      killed = true;
      output_.add(fmt::format("killing {}: {}", names_of(is_running),
                              stop_requested_ ? "a second signal asks for it"
                                              : fmt::format("not stopped within {} ms", limit_ms)));
      signal_all(SIGKILL);
    }
  }
  output_.set_status("");
  output_.flush(last_words);
}

void supervisor::signal_next_stage() noexcept {
  std::optional<int> stage;
  for (const member& child : members_) {
    if (is_running(child.now)) {
      stage = std::min(stage.value_or(child.stop_stage), child.stop_stage);
    }
  }
  for (member& child : members_) {
    if (is_running(child.now) && child.stop_stage == stage &&
        !std::exchange(child.told_to_stop, true)) {
      signal_group(child.process.pid, SIGTERM);
    }
  }
}

void supervisor::signal_all(int number) noexcept {
  for (const member& child : members_) {
    if (is_running(child.now)) {
      signal_group(child.process.pid, number);
    }
  }
}

void supervisor::turn(std::optional<clock::time_point> deadline) {
  std::vector<pollfd> watched{{signals_.fd(), POLLIN, 0}, {output_.pending_fd(), POLLOUT, 0}};
  for (const member& child : members_) {
    watched.push_back({child.process.output.fd(), POLLIN, 0});
    watched.push_back({child.process.readiness.fd(), POLLIN, 0});
  }
  milliseconds wait{-1};
  if (deadline) {
    wait = std::max(std::chrono::ceil<milliseconds>(*deadline - clock::now()), milliseconds(0));
  }
  if (output_.shows_status() && (wait.count() < 0 || wait > redraw)) {
    wait = redraw;
  }
  ::poll(watched.data(), watched.size(), static_cast<int>(wait.count()));
  output_.write_some();
  for (member& child : members_) {
    read_output(child, turn_bytes_max);
    read_readiness(child);
  }
  for (int number = signals_.take(); number != 0; number = signals_.take()) {
    stop_requested_ = stop_requested_ || number != SIGCHLD;
  }
  collect_ended();
}

void supervisor::read_output(member& child, std::size_t bytes_max) {
  child.process.output.read_some(bytes_max, [&](std::string_view line) {
    output_.add(line);
    child.last_line = line;
  });
}

void supervisor::read_readiness(member& child) {
  child.process.readiness.read_some(turn_bytes_max, [&](std::string_view line) {
    if (child.now != state::starting || !child.failure.empty()) {
      return;
    }
    readiness_report report = parse_readiness(line);
    if (report.ready) {
      child.now = state::ready;
      show_progress(fmt::format("{} is ready ({} of {}, {})", child.name, ready(), members_.size(),
                                elapsed()));
    } else {
      child.failure = std::move(report.failure);
    }
  });
}

void supervisor::collect_ended() {
  for (member& child : members_) {
    int status = 0;
    if (is_running(child.now) && collect(child.process.pid, status)) {
      read_output(child, final_bytes_max);
      read_readiness(child);
      note_end(child, status);
    }
  }
}

void supervisor::note_end(member& child, int status) {
  const bool was_starting = child.now == state::starting;
  child.now = state::ended;
  const std::string how = describe_exit(status);
  if (child.failure.empty()) {
    child.failure = fmt::format("it {}{}", how, was_starting ? " before it was ready" : "");
    if (!child.last_line.empty()) {
      child.failure += fmt::format("; its last line was: {}", child.last_line);
    }
  }
  const bool asked_to =
      stopping_ && was_starting && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
  if (status != 0 && !asked_to) {
    losses_.push_back(fmt::format("node '{}' {}", child.name, how));
  }
  if (!was_starting && !stopping_) {
    output_.add(fmt::format("node '{}' {}; {} of {} nodes run", child.name, how, running(),
                            members_.size()));
  }
}

void supervisor::kill_all() noexcept {
  signal_all(SIGKILL);
  for (member& child : members_) {
    if (is_running(child.now)) {
      int status = 0;
      waitpid(child.process.pid, &status, 0);
      child.now = state::ended;
    }
  }
}

void supervisor::throw_if_failed() const {
  const auto failed =
      std::ranges::find_if(members_, [](const member& child) { return !child.failure.empty(); });
  if (failed != members_.end()) {
    throw supervisor_error(
        fmt::format("node '{}' cannot start: {}", failed->name, failed->failure));
  }
}

std::size_t supervisor::running() const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(members_, is_running, &member::now));
}

std::size_t supervisor::ready() const noexcept {
  return static_cast<std::size_t>(std::ranges::count(members_, state::ready, &member::now));
}

std::string supervisor::names_of(bool (*wanted)(state)) const {
  std::string names;
  for (const member& child : members_) {
    if (wanted(child.now)) {
      names += (names.empty() ? "" : " ") + child.name;
    }
  }
  return names;
}

std::string supervisor::elapsed() const {
  const std::chrono::duration<double> passed = clock::now() - started_at_;
  return fmt::format("{:.1f} s", passed.count());
}

void supervisor::show_progress(const std::string& text) {
  // On a terminal the status line says it.
  if (!output_.live()) {
    output_.add(text);
  }
}

}  // namespace eldr::cluster
