/// `eldr bench pull`: a request's KV blocks read from another process, against memcpy and raw UCX.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>

#include "apps/bench_commands.hpp"
#include "apps/bench_peer.hpp"
#include "apps/bench_report.hpp"
#include "gpu/geometry.hpp"

namespace eldr::apps {
namespace {

using std::chrono::steady_clock;

struct pull_options : bench_options {
  std::uint32_t tokens = 256;
  std::size_t rounds = 15;
  std::size_t pulls = 8;  ///< Of a round, per path.
};

struct kv_shape {
  std::string name;
  gpu::kv_layout layout;
};

std::vector<kv_shape> shapes() {
  return {{"tiny-moe, f32", {16, 6, 2, 32, gpu::kv_dtype::f32}},
          {"Qwen3-30B-A3B, bf16", {16, 48, 4, 128, gpu::kv_dtype::bf16}}};
}

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

/// The blocks of a request in the pool of the prefill worker, and where they go here.
using pull_plan = std::vector<messages::get_range>;

class plans {
 public:
  plans(std::uint32_t blocks, std::size_t block_bytes)
      : blocks_(blocks), block_bytes_(block_bytes), pool_(pool_blocks(blocks)) {
    std::iota(pool_.begin(), pool_.end(), 0u);
  }
  /// Twice what a request needs, so that its blocks do not lie side by side.
  static std::vector<std::uint32_t> pool_blocks(std::uint32_t blocks) {
    return std::vector<std::uint32_t>(2 * std::size_t{blocks});
  }
  std::size_t pool_bytes() const noexcept { return pool_.size() * block_bytes_; }
  std::size_t pull_bytes() const noexcept { return blocks_ * block_bytes_; }

  /// Blocks drawn anew, to the beginning of `local`.
  pull_plan draw(std::byte* local) {
    std::shuffle(pool_.begin(), pool_.end(), random_);
    pull_plan plan;
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      plan.push_back({pool_[i] * block_bytes_, local + i * block_bytes_, block_bytes_});
    }
    return plan;
  }

 private:
  std::uint32_t blocks_;
  std::size_t block_bytes_;
  std::vector<std::uint32_t> pool_;
  std::mt19937 random_{1};
};

/// Throws if the destination does not hold what the peer's memory does.
void verify(const pull_plan& plan, const char* path) {
  for (const auto& range : plan) {
    for (std::size_t at = 0; at < range.length; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, range.local + at, sizeof word);
      if (word != bench_word(range.remote_offset + at)) {
        throw std::runtime_error(fmt::format("{} read wrong bytes; this is a fault of eldr", path));
      }
    }
  }
}

// --- through the transport ----------------------------------------------------------------------

/// Pulls one plan after the other, each from the callback of the one before, as a busy decoder
/// does.
class transport_puller final : public messages::transport_events {
 public:
  transport_puller(bench_pair& pair, interruption& stop)
      : transport_(pair.transport()), stop_(stop), stop_first_{pair.transport()} {
    transport_.start(*this);
    transport_.dial(pair.peer_address());
    wait([this] { return session_ != 0; });
  }

  /// Times of the pulls, in seconds.
  std::vector<double> pull(std::vector<pull_plan> plans) {
    {
      const std::lock_guard lock(mutex_);
      plans_ = std::move(plans);
      next_ = 0;
      times_.clear();
      times_.reserve(plans_.size());
      done_ = false;
    }
    pull_next();
    wait([this] { return done_; });
    return times_;
  }

  void opened(const messages::peer& peer) override {
    tell([&] { session_ = peer.session; });
  }
  void received(messages::frame_ptr) override {}
  void ended(const messages::peer&, messages::end_reason, const std::string& detail) override {
    tell([&] { failure_ = "the session ended: " + detail; });
  }
  void dial_failed(const std::string&, const std::string& error) override {
    tell([&] { failure_ = error; });
  }

 private:
  void pull_next() {
    begin_ = steady_clock::now();
    transport_.get(session_, 0, plans_[next_++],
                   [this](messages::get_status status) { pulled(status); });
  }
  void pulled(messages::get_status status) {
    const double time = seconds_since(begin_);
    if (status != messages::get_status::ok) {
      tell([&] { failure_ = messages::to_string(status); });
      return;
    }
    times_.push_back(time);
    if (next_ < plans_.size()) {
      pull_next();
    } else {
      tell([&] { done_ = true; });
    }
  }
  template <class Change>
  void tell(Change change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <class Done>
  void wait(Done done) {
    std::unique_lock lock(mutex_);
    const auto deadline = steady_clock::now() + std::chrono::seconds(30);
    while (!done()) {
      stop_.check();
      if (!failure_.empty() || steady_clock::now() > deadline) {
        throw std::runtime_error("cannot read from the benchmark's peer: " +
                                 (failure_.empty() ? "it does not answer" : failure_));
      }
      changed_.wait_for(lock, std::chrono::milliseconds(100));
    }
  }

  messages::transport& transport_;
  interruption& stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  messages::session_id session_ = 0;
  std::string failure_;
  std::vector<pull_plan> plans_;
  std::size_t next_ = 0;
  steady_clock::time_point begin_;
  std::vector<double> times_;
  bool done_ = true;
  transport_stopper stop_first_;
};

// --- measuring ----------------------------------------------------------------------------------

/// What the paths copy from and to in this process.
struct local_memory {
  std::span<std::byte> transport;
  std::span<std::byte> raw;
  std::vector<std::byte> source;
};

double copy(const pull_plan& plan, const local_memory& memory) {
  const auto begin = steady_clock::now();
  for (const auto& range : plan) {
    std::memcpy(range.local, memory.source.data() + range.remote_offset, range.length);
  }
  return seconds_since(begin);
}

struct pull_times {
  std::vector<double> memcpy_s;
  std::vector<double> raw_s;
  std::vector<double> transport_s;
};

/// Medians of a round of each path.
void measure_round(const pull_options& o, plans& draw, local_memory& memory, bench_pair& pair,
                   transport_puller& puller, pull_times& times) {
  std::vector<pull_plan> raw_plans;
  std::vector<pull_plan> transport_plans;
  std::vector<double> copies;
  std::vector<double> raw;
  for (std::size_t i = 0; i < o.pulls; ++i) {
    const auto plan = draw.draw(memory.raw.data());
    copies.push_back(copy(plan, memory));
    raw_plans.push_back(plan);
    transport_plans.push_back(plan);
    for (auto& range : transport_plans.back()) {
      range.local = memory.transport.data() + (range.local - memory.raw.data());
    }
  }
  for (const auto& plan : raw_plans) {
    raw.push_back(pair.raw().get(plan, messages::transport_limits{}.gets_in_flight));
  }
  verify(raw_plans.back(), "raw UCX");
  const auto last = transport_plans.back();
  times.memcpy_s.push_back(median(copies));
  times.raw_s.push_back(median(raw));
  times.transport_s.push_back(median(puller.pull(std::move(transport_plans))));
  verify(last, "transport.get");
}

void measure(const pull_options& o, bool shared_memory, const kv_shape& shape, interruption& stop,
             bench_report& report) {
  const char* network = shared_memory ? "shared memory" : "tcp";
  show_progress(fmt::format("{}, {} ...", network, shape.name));
  plans draw(shape.layout.blocks_for(o.tokens), shape.layout.block_bytes());
  bench_pair pair({.shared_memory = shared_memory, .memory_bytes = draw.pool_bytes()}, stop);
  local_memory memory{pair.transport().allocate_region(draw.pull_bytes()),
                      pair.raw().allocate(draw.pull_bytes()),
                      std::vector<std::byte>(draw.pool_bytes(), std::byte{1})};
  transport_puller puller(pair, stop);
  pull_times times;
  pull_times warm_up;
  for (std::size_t round = 0; round <= o.rounds; ++round) {
    stop.check();
    measure_round(o, draw, memory, pair, puller, round == 0 ? warm_up : times);
  }
  const auto bytes = static_cast<double>(draw.pull_bytes());
  // Of the rounds: within one, what else runs on the machine hits all paths alike.
  const auto ratio = [](const std::vector<double>& floor, const std::vector<double>& of) {
    std::vector<double> values;
    for (std::size_t i = 0; i < of.size(); ++i) {
      values.push_back(floor[i] / of[i]);
    }
    return median(std::move(values));
  };
  const auto add = [&](const char* path, const std::vector<double>& s, const char* aim) {
    report.add({std::string(network), shape.name, bytes / (1 << 20), std::string(path),
                median(s) * 1e3, bytes / median(s) / 1e9, ratio(times.memcpy_s, s),
                ratio(times.raw_s, s), std::string(aim)});
  };
  add("memcpy", times.memcpy_s, "");
  add("raw ucp_get", times.raw_s, "");
  add("transport.get", times.transport_s, ">= 0.9 of raw");
}

int run(pull_options o) {
  if (o.quick) {
    o.rounds = 2;
    o.pulls = 2;
  }
  interruption stop;
  bench_report report("pull", o,
                      {{"network", "network"},
                       {"layout", "layout"},
                       {"mib", "MiB", 2},
                       {"path", "path"},
                       {"time_ms", "ms", 3},
                       {"gb_per_s", "GB/s", 2},
                       {"of_memcpy", "of memcpy", 2},
                       {"of_raw", "of raw", 2},
                       {"aim", "aim"}});
  for (const bool shared_memory : {false, true}) {
    for (const auto& shape : shapes()) {
      measure(o, shared_memory, shape, stop, report);
    }
  }
  report.note(fmt::format(
      "The KV blocks of {} tokens, spread over a pool, read from another process; medians over {} "
      "rounds of {} pulls in which the paths take turns.",
      o.tokens, o.rounds, o.pulls));
  report.print();
  return 0;
}

}  // namespace

void add_bench_pull(CLI::App& bench, command& chosen) {
  auto o = std::make_shared<pull_options>();
  CLI::App* app = bench.add_subcommand(
      "pull", "A request's KV blocks read from another process, against memcpy and raw UCX");
  add_bench_options(*app, *o);
  app->add_option("--tokens", o->tokens, "Length of the request")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_option("--rounds", o->rounds, "Rounds of each path")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app->add_option("--pulls", o->pulls, "Pulls of a round")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace eldr::apps
