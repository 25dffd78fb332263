#include "cluster/node_process.hpp"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <xxhash.h>

#include <chrono>
#include <memory>
#include <random>
#include <system_error>

#include "actors/common/runtime.hpp"
#include "cluster/node_assembly.hpp"
#include "cluster/readiness.hpp"
#include "cluster/settings_of.hpp"
#include "cluster/signal_inbox.hpp"
#include "cluster/token.hpp"
#include "cluster/tokenizer_codec.hpp"
#include "cluster/unique_fd.hpp"
#include "fit/artifact.hpp"
#include "gpu/host_runner.hpp"
#include "gpu/model_config.hpp"
#include "gpu/threaded_engine.hpp"
#include "messages/ucx_transport.hpp"

namespace eldr::cluster {
namespace {

constexpr std::uint32_t exit_drained = 1;
constexpr std::uint32_t exit_fault = 1u << 16;

std::uint64_t random_u64() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

std::int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Peers may only exchange KV of equal shape.
std::uint64_t layout_hash(const gpu::model_geometry& g, const gpu::kv_layout& l) {
  const std::uint64_t parts[] = {
      g.layers, g.experts,  g.experts_per_token, l.block_tokens,
      l.layers, l.kv_heads, l.head_dim,          static_cast<std::uint64_t>(l.dtype)};
  return XXH3_64bits(parts, sizeof parts) | 1;
}

void set_up_log(const manifest& m, const std::string& node) {
  auto logger =
      std::make_shared<spdlog::logger>(node, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %n %l: %v");
  logger->set_level(spdlog::level::from_str(m.log_level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

void pin_to(const std::vector<std::uint32_t>& cores) {
  if (cores.empty()) {
    return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  for (auto core : cores) {
    CPU_SET(core, &set);
  }
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot run on the manifest's cores");
  }
}

/// All parts of a running node, torn down from the last to the first.
class node_process {
 public:
  node_process(const manifest& m, const node_spec& spec, int ready_fd)
      : manifest_(m), spec_(spec), ready_fd_(ready_fd), wake_(eventfd(0, EFD_CLOEXEC)) {
    if (wake_.get() < 0) {
      throw std::system_error(errno, std::generic_category(), "cannot make an event descriptor");
    }
  }

  ~node_process() {
    // No event reaches the actors any more, then no actor the engine; the memory goes last.
    if (transport_) {
      transport_->stop();
    }
    runtime_.reset();
    engine_.reset();
  }

  void start() {
    const auto files = gpu::open_model(model_name());
    const bool works = spec_.role == node_role::prefill || spec_.role == node_role::decode;
    std::unique_ptr<gpu::model_runner> runner;
    messages::identity id{
        spec_.name, std::string(to_string(spec_.role)), random_u64() | 1, 0, 0, spec_.address()};
    if (works) {
      gpu::host_options options;
      options.kv = manifest_.kv.dtype;
      options.block_tokens = manifest_.kv.block_tokens;
      options.threads = manifest_.engine_threads;
      runner = gpu::make_host_runner(files, options);
      id.fingerprint = runner->fingerprint();
      id.layout = layout_hash(runner->geometry(), runner->layout());
    }
    messages::ucx_options ucx;
    ucx.token = read_token(manifest_.token_path());
    ucx.shared_memory = manifest_.transport.shared_memory;
    ucx.spin_us = manifest_.transport.spin_us;
    ucx.limits = transport_limits_of(manifest_);
    transport_ = messages::make_ucx_transport(std::move(id), std::move(ucx));
    assembly parts;
    parts.settings = settings_of(manifest_);
    parts.members = members_of(manifest_);
    parts.slot = slot_of(manifest_, spec_);
    if (works) {
      make_engine(std::move(runner), parts);
    } else if (spec_.role == node_role::router) {
      add_routing(*files, parts);
    } else if (spec_.role == node_role::gateway) {
      parts.codec = make_tokenizer_codec(*files);
    }
    parts.on_ready = [this] {
      spdlog::info("ready");
      report_ready(std::exchange(ready_fd_, -1));
    };
    parts.on_drained = [this] { wake(exit_drained); };
    runtime_ =
        std::make_unique<actors::runtime>(make_environment(), actors::runtime::mode::threads);
    actors_ = std::make_unique<node_actors>(parts, *transport_, *runtime_);
    transport_->start(actors_->events());
    spdlog::info("{} listens on {}{}", to_string(spec_.role), transport_->self().address,
                 works ? ", engine " + engine_->backend() : std::string());
  }

  /// Returns the exit code.
  int run(signal_inbox& signals) {
    bool draining = false;
    while (true) {
      pollfd watched[] = {{signals.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      if (poll(watched, 2, -1) < 0 && errno != EINTR) {
        throw std::system_error(errno, std::generic_category(), "poll");
      }
      std::uint64_t news = 0;
      if ((watched[1].revents & POLLIN) != 0 &&
          read(wake_.get(), &news, sizeof news) == sizeof news) {
        spdlog::info(news >= exit_fault ? "ending after a fault" : "drained, ending");
        return news >= exit_fault ? 1 : 0;
      }
      for (int signal = signals.take(); signal != 0; signal = signals.take()) {
        if (signal != SIGINT && signal != SIGTERM) {
          continue;
        }
        if (std::exchange(draining, true)) {
          spdlog::warn("ending at once");
          return 128 + signal;
        }
        actors_->node()->put(actors::drain{});
      }
    }
  }

 private:
  std::string model_name() const {
    const auto path = manifest_.model_path();
    return path ? path->string() : std::string();
  }

  /// What a router knows of the model, and its artifact.
  void add_routing(const gpu::model_files& files, assembly& parts) {
    const auto geometry = gpu::parse_config(files.config_json()).geometry;
    parts.policy.layers = geometry.layers;
    parts.policy.experts = geometry.experts;
    parts.policy.experts_per_token = geometry.experts_per_token;
    parts.load_artifact = [geometry,
                           block_tokens = manifest_.kv.block_tokens](const std::string& path) {
      auto artifact = std::make_shared<fit::artifact>(fit::load_artifact(path));
      fit::check_artifact_fits(*artifact, geometry.layers, geometry.experts,
                               geometry.experts_per_token, block_tokens);
      return artifact;
    };
    if (const auto path = manifest_.artifact_path()) {
      parts.policy.artifact = parts.load_artifact(path->string());
      parts.artifact_source = path->string();
    }
  }

  void make_engine(std::unique_ptr<gpu::model_runner> runner, assembly& parts) {
    const auto& geometry = runner->geometry();
    const auto blocks = manifest_.kv.blocks;
    parts.memory.block_count = blocks;
    parts.memory.kv =
        transport_->allocate_region(std::size_t{blocks} * runner->layout().block_bytes());
    if (spec_.role == node_role::prefill) {
      rows_.resize(std::size_t{blocks} * geometry.layers * geometry.experts);
      parts.memory.rows = rows_;
    }
    engine_ = std::make_unique<gpu::threaded_engine>(std::move(runner), parts.memory);
    parts.engine = engine_.get();
    spdlog::info("KV pool {} blocks, {:.1f} MiB{}", blocks,
                 static_cast<double>(parts.memory.kv.size()) / (1 << 20),
                 rows_.empty() ? std::string()
                               : fmt::format("; signature rows {:.2f} MiB ({:.2f} % of it)",
                                             static_cast<double>(rows_.size()) / (1 << 20),
                                             100.0 * static_cast<double>(rows_.size()) /
                                                 static_cast<double>(parts.memory.kv.size())));
  }

  actors::environment make_environment() {
    actors::environment env;
    env.now_ns = steady_now_ns;
    // Actors of one node run on one thread at a time only if there is one thread: draw under a
    // lock.
    env.random = [state = std::make_shared<std::pair<std::mutex, std::mt19937_64>>(
                      std::piecewise_construct, std::tuple<>(), std::tuple(random_u64()))] {
      const std::lock_guard lock(state->first);
      return state->second();
    };
    env.transport = transport_.get();
    env.on_fault = [this](const std::string&, const std::string&) { wake(exit_fault); };
    return env;
  }

  void wake(std::uint64_t news) { (void)!write(wake_.get(), &news, sizeof news); }

  const manifest& manifest_;
  const node_spec& spec_;
  int ready_fd_;
  unique_fd wake_;
  std::unique_ptr<messages::transport> transport_;
  std::vector<std::int8_t> rows_;
  std::unique_ptr<gpu::threaded_engine> engine_;
  std::unique_ptr<actors::runtime> runtime_;
  std::unique_ptr<node_actors> actors_;
};

}  // namespace

int run_node(const manifest& m, const node_spec& spec, int ready_fd) {
  set_up_log(m, spec.name);
  try {
    pin_to(spec.cores);
    // Before any thread is made, so that all of them leave signals to this one.
    signal_inbox signals;
    node_process node(m, spec, ready_fd);
    node.start();
    return node.run(signals);
  } catch (const std::exception& e) {
    report_failure(ready_fd, e.what());
    throw;
  }
}

}  // namespace eldr::cluster
