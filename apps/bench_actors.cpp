/// `eldr bench actors`: round trips between actors of two processes, against raw UCX.

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <stdexcept>

#include "actors/common/runtime.hpp"
#include "actors/node/dispatcher.hpp"
#include "apps/bench_commands.hpp"
#include "apps/bench_peer.hpp"
#include "apps/bench_report.hpp"

namespace eldr::apps {
namespace {

using actors::runtime;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             steady_clock::now().time_since_epoch())
      .count();
}

/// How the main thread asks an actor for a series of round trips.
class ping_series {
 public:
  /// Main thread: prepares a series; the actor is then to be woken.
  void prepare(std::size_t bytes, std::size_t count) {
    const std::lock_guard lock(mutex_);
    data_.assign(bytes, std::byte{0x5a});
    count_ = count;
    us_.clear();
    us_.reserve(count);
    done_ = false;
  }
  /// Main thread: waits for its end.
  std::vector<double> wait(interruption& stop) {
    std::unique_lock lock(mutex_);
    const auto deadline = steady_clock::now() + std::chrono::seconds(30);
    while (!done_) {
      stop.check();
      if (!lost_.empty() || steady_clock::now() > deadline) {
        throw std::runtime_error("the benchmark's peer does not answer" +
                                 (lost_.empty() ? lost_ : ": " + lost_));
      }
      changed_.wait_for(lock, milliseconds(100));
    }
    return us_;
  }
  void wait_opened(interruption& stop) {
    std::unique_lock lock(mutex_);
    while (!opened_) {
      stop.check();
      if (!lost_.empty()) {
        throw std::runtime_error("cannot reach the benchmark's peer: " + lost_);
      }
      changed_.wait_for(lock, milliseconds(100));
    }
  }

  // The actor's side. The lock is never contended while a series runs.
  void opened() {
    tell([&] { opened_ = true; });
  }
  void lost(const std::string& why) {
    tell([&] { lost_ = why; });
  }
  std::span<const std::byte> data() const noexcept { return data_; }
  /// Returns whether the series goes on.
  bool add(double us) {
    us_.push_back(us);
    if (us_.size() < count_) {
      return true;
    }
    tell([&] { done_ = true; });
    return false;
  }

 private:
  template <class Change>
  void tell(Change change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte> data_;
  std::size_t count_ = 0;
  std::vector<double> us_;
  bool opened_ = false;
  bool done_ = true;
  std::string lost_;
};

/// Sends a message when it is woken, and the next when it is answered.
class ping_core final : public actors::core {
 public:
  ping_core(ping_series& series, wire::ActorKind partner) : series_(series), partner_(partner) {}

  void handle(actors::context& ctx, actors::event& e) override {
    if (std::holds_alternative<actors::incoming>(e)) {
      if (series_.add(static_cast<double>(now_ns() - sent_ns_) / 1e3)) {
        ping(ctx);
      }
    } else if (std::holds_alternative<actors::wake>(e)) {
      ping(ctx);
    } else if (const auto* up = std::get_if<actors::peer_up>(&e)) {
      session_ = up->peer->session;
      series_.opened();
    } else if (const auto* down = std::get_if<actors::peer_down>(&e)) {
      series_.lost(down->detail);
    }
  }

 private:
  void ping(actors::context& ctx) {
    sent_ns_ = now_ns();
    actors::send(ctx, session_, make_bench_message(partner_, series_.data()));
  }

  ping_series& series_;
  wire::ActorKind partner_;
  messages::session_id session_ = 0;
  std::int64_t sent_ns_ = 0;
};

/// The actors of this end, on one network.
class ping_actors {
 public:
  ping_actors(bench_pair& pair, interruption& stop)
      : runtime_(environment_of(pair), runtime::mode::threads),
        events_(runtime_),
        stop_first_{pair.transport()} {
    add(bench_path::scheduler, runtime::execution::scheduler);
    add(bench_path::progress, runtime::execution::progress);
    pair.transport().start(events_);
    pair.transport().dial(pair.peer_address());
    for (auto& each : ends_) {
      each.series.wait_opened(stop);
    }
  }

  std::vector<double> ping(bench_path path, std::size_t bytes, std::size_t count,
                           interruption& stop) {
    auto& end = ends_[static_cast<std::size_t>(path)];
    end.series.prepare(bytes, count);
    end.actor->put(actors::wake{});
    return end.series.wait(stop);
  }

 private:
  struct end {
    ping_series series;
    actors::actor_ref actor;
  };

  static actors::environment environment_of(bench_pair& pair) {
    actors::environment env;
    env.now_ns = now_ns;
    env.random = [] { return std::uint64_t{0}; };
    env.transport = &pair.transport();
    return env;
  }
  void add(bench_path path, runtime::execution where) {
    auto& end = ends_[static_cast<std::size_t>(path)];
    end.actor =
        runtime_.spawn("ping", std::make_unique<ping_core>(end.series, echo_kind(path)), where);
    events_.add(reply_kind(path), end.actor);
  }

  std::array<end, 2> ends_;
  runtime runtime_;
  actors::dispatcher events_;
  transport_stopper stop_first_;
};

// --- measuring ----------------------------------------------------------------------------------

struct actors_options : bench_options {
  std::size_t rounds = 21;
  std::size_t pings = 1000;
};

/// Quantiles of each round.
struct measured {
  std::vector<double> p50;
  std::vector<double> p99;
  void add(const std::vector<double>& us) {
    p50.push_back(quantile(us, 0.5));
    p99.push_back(quantile(us, 0.99));
  }
};

struct path_result {
  const char* name;
  const char* aim_tcp;
  const char* aim_shared_memory;
  measured times;
};

/// Over the rounds: the paths take turns, so that what else runs on the machine hits all alike.
std::vector<double> against(const measured& times, const measured& floor, bool ratio) {
  std::vector<double> values;
  for (std::size_t i = 0; i < times.p50.size(); ++i) {
    values.push_back(ratio ? times.p50[i] / floor.p50[i] : times.p50[i] - floor.p50[i]);
  }
  return values;
}

void measure_network(const actors_options& o, bool shared_memory, interruption& stop,
                     bench_report& report) {
  bench_pair pair({.shared_memory = shared_memory}, stop);
  ping_actors actors_here(pair, stop);
  const char* network = shared_memory ? "shared memory" : "tcp";
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{12288}}) {
    show_progress(fmt::format("{}, {} B ...", network, bytes));
    std::array<path_result, 3> paths{{{"raw UCX", "", "", {}},
                                      {"actor, inline", "<= 1.3x", "<= +2.5 us", {}},
                                      {"actor, scheduler", "<= 2.5x", "<= +25 us", {}}}};
    // The first round opens connections and warms up.
    for (std::size_t round = 0; round <= o.rounds; ++round) {
      stop.check();
      const std::array<std::vector<double>, 3> us{
          pair.raw().ping(bytes, o.pings),
          actors_here.ping(bench_path::progress, bytes, o.pings, stop),
          actors_here.ping(bench_path::scheduler, bytes, o.pings, stop)};
      for (std::size_t i = 0; round > 0 && i < us.size(); ++i) {
        paths[i].times.add(us[i]);
      }
    }
    const auto& floor = paths[0].times;
    for (const auto& path : paths) {
      report.add({std::string(network), static_cast<double>(bytes), std::string(path.name),
                  median(path.times.p50), median(path.times.p99),
                  median(against(path.times, floor, true)),
                  median(against(path.times, floor, false)),
                  std::string(shared_memory ? path.aim_shared_memory : path.aim_tcp)});
    }
  }
}

int run(actors_options o) {
  if (o.quick) {
    o.rounds = 3;
    o.pings = 30;
  }
  interruption stop;
  bench_report report("actors", o,
                      {{"network", "network"},
                       {"bytes", "bytes", 0},
                       {"path", "path"},
                       {"p50_us", "p50 us", 1},
                       {"p99_us", "p99 us", 1},
                       {"ratio", "of raw", 2},
                       {"added_us", "added us", 1},
                       {"aim", "aim"}});
  measure_network(o, false, stop, report);
  measure_network(o, true, stop, report);
  report.note(fmt::format(
      "Round trips between two processes, one message at a time; medians over {} rounds of {} in "
      "which the paths take turns.",
      o.rounds, o.pings));
  report.print();
  return 0;
}

}  // namespace

void add_bench_actors(CLI::App& bench, command& chosen) {
  auto o = std::make_shared<actors_options>();
  CLI::App* app = bench.add_subcommand(
      "actors", "Round trips between actors of two processes, against raw UCX");
  add_bench_options(*app, *o);
  app->add_option("--rounds", o->rounds, "Rounds of each path")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app->add_option("--pings", o->pings, "Round trips of a round")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace eldr::apps
