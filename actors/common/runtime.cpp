#include "actors/common/runtime.hpp"

#include <kj/exception.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

namespace eldr::actors {
namespace {

/// The one kind of message that reaches a core's actor. Shared, because CAF wants to be able to
/// copy messages; each has one receiver.
struct delivery {
  std::shared_ptr<event> what;
};
/// A delayed message to oneself.
struct alarm {};

}  // namespace
}  // namespace eldr::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(eldr::actors::delivery)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(eldr::actors::alarm)

namespace eldr::actors {
namespace {

/// Collects the jobs of `progress` actors while a thread delivers events, and runs them there.
class inline_unit final : public caf::execution_unit {
 public:
  explicit inline_unit(caf::actor_system& system) : caf::execution_unit(&system) {}

  void exec_later(caf::resumable* job) override { jobs_.push_back(job); }

  void run() {
    // Handlers put events for each other: new jobs join at the end.
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      auto* job = jobs_[i];
      if (i >= turns_max) {
        system().scheduler().enqueue(job);
        continue;
      }
      switch (job->resume(this, messages_per_turn)) {
        case caf::resumable::resume_later:
          jobs_.push_back(job);
          break;
        case caf::resumable::done:
        case caf::resumable::awaiting_message:
          caf::intrusive_ptr_release(job);
          break;
        default:
          break;
      }
    }
    jobs_.clear();
  }

 private:
  static constexpr std::size_t turns_max = 64;
  static constexpr std::size_t messages_per_turn = 64;
  std::vector<caf::resumable*> jobs_;
};

/// Set while its thread is inside runtime::deliver().
thread_local inline_unit* delivering = nullptr;  // allowed: names the unit of this call, not state

class caf_mailbox final : public mailbox {
 public:
  caf_mailbox(caf::actor actor, runtime::execution where)
      : actor_(std::move(actor)), where_(where) {}
  void put(event e) override {
    auto* unit = where_ == runtime::execution::progress ? delivering : nullptr;
    actor_->enqueue(nullptr, caf::make_message_id(),
                    caf::make_message(delivery{std::make_shared<event>(std::move(e))}), unit);
  }

 private:
  caf::actor actor_;
  runtime::execution where_;
};

/// Address of an actor that was never started.
class closed_mailbox final : public mailbox {
 public:
  void put(event) override {}
};

class core_actor final : public caf::event_based_actor, private context {
 public:
  core_actor(
      caf::actor_config& config, std::string name, std::unique_ptr<core> core,
      const environment& env, runtime::execution where,
      std::function<actor_ref(const std::string&, std::unique_ptr<eldr::actors::core>)> spawn)
      : caf::event_based_actor(config),
        name_(std::move(name)),
        core_(std::move(core)),
        env_(env),
        where_(where),
        spawn_(std::move(spawn)) {}

  const char* name() const override { return name_.c_str(); }

  caf::behavior make_behavior() override {
    self_ = std::make_shared<caf_mailbox>(caf::actor_cast<caf::actor>(this), where_);
    guarded(nullptr, [&] { core_->start(*this); });
    return {[this](const delivery& d) { run(*d.what); },
            [this](alarm) {
              armed_ns_.reset();
              event e = actors::wake{};
              run(e);
            }};
  }

  void on_exit() override {
    core_.reset();
    self_.reset();
  }

 private:
  void run(event& e) {
    auto* in = std::get_if<incoming>(&e);
    guarded(in ? in->from.get() : nullptr, [&] { core_->handle(*this, e); });
  }

  template <class Handler>
  void guarded(const messages::peer* from, Handler handler) {
    try {
      handler();
    } catch (const kj::Exception& broken) {
      if (from == nullptr) {
        fault(broken.getDescription().cStr());
        return;
      }
      env_.transport->close(from->session,
                            std::string("malformed message: ") + broken.getDescription().cStr());
    } catch (const std::exception& broken) {
      fault(broken.what());
    }
  }

  void fault(const std::string& what) {
    spdlog::critical("actor {} failed: {}", name_, what);
    if (env_.on_fault) {
      env_.on_fault(name_, what);
    }
    caf::event_based_actor::quit(caf::exit_reason::unhandled_exception);
  }

  std::int64_t now_ns() const override { return env_.now_ns(); }
  std::uint64_t random() override { return env_.random(); }
  messages::transport& transport() override { return *env_.transport; }
  actor_ref self() override { return self_; }
  void wake_at(std::int64_t due_ns) override {
    if (armed_ns_ && *armed_ns_ <= due_ns) {
      return;
    }
    armed_ns_ = due_ns;
    delayed_send(this, std::chrono::nanoseconds(std::max<std::int64_t>(due_ns - now_ns(), 0)),
                 alarm{});
  }
  actor_ref spawn(const std::string& name, std::unique_ptr<core> core) override {
    return spawn_(name, std::move(core));
  }
  void quit() override { caf::event_based_actor::quit(); }

  std::string name_;
  std::unique_ptr<core> core_;
  const environment& env_;
  runtime::execution where_;
  std::function<actor_ref(const std::string&, std::unique_ptr<eldr::actors::core>)> spawn_;
  actor_ref self_;
  std::optional<std::int64_t> armed_ns_;
};

struct system_config : caf::actor_system_config {
  system_config(runtime::mode mode, std::uint32_t threads) {
    set("logger.verbosity", caf::atom("quiet"));
    if (mode == runtime::mode::driven) {
      set("scheduler.policy", caf::atom("testing"));
    } else {
      set("scheduler.policy", caf::atom("sharing"));
      set("scheduler.max-threads", std::size_t{threads});
    }
  }
};

}  // namespace

struct runtime::impl {
  impl(environment e, mode m, std::uint32_t threads)
      : env(std::move(e)), config(m, threads), system(config) {
    if (m == mode::driven) {
      driven = dynamic_cast<caf::scheduler::test_coordinator*>(&system.scheduler());
    }
  }

  environment env;
  system_config config;
  caf::actor_system system;
  caf::scheduler::test_coordinator* driven = nullptr;
  inline_unit unit{system};  // Used by the one thread that delivers events.
  std::mutex actors_mutex;   // Gateways spawn from actor threads.
  std::vector<caf::actor_addr> actors;
  bool stopped = false;

  actor_ref spawn(const std::string& name, std::unique_ptr<core> core, execution where) {
    // Held throughout, so that stop() either finds the actor or has come first.
    const std::lock_guard lock(actors_mutex);
    if (stopped) {
      return std::make_shared<closed_mailbox>();
    }
    auto actor = system.spawn<core_actor>(
        name, std::move(core), env, where,
        [this](const std::string& n, std::unique_ptr<eldr::actors::core> c) {
          return spawn(n, std::move(c), execution::scheduler);
        });
    // Forget the ended ones now and then: requests come and go.
    if (actors.size() > 2 * live_estimate + 64) {
      std::erase_if(actors,
                    [](const caf::actor_addr& a) { return !caf::actor_cast<caf::actor>(a); });
      live_estimate = actors.size();
    }
    actors.push_back(actor.address());
    return std::make_shared<caf_mailbox>(std::move(actor), where);
  }

  std::size_t live_estimate = 0;
};

runtime::runtime(environment env, mode m, std::uint32_t threads)
    : impl_(std::make_unique<impl>(std::move(env), m, threads)) {}

runtime::~runtime() {
  stop();
}

actor_ref runtime::spawn(const std::string& name, std::unique_ptr<core> core, execution where) {
  return impl_->spawn(name, std::move(core), where);
}

void runtime::deliver(const std::function<void()>& put_events) {
  if (impl_->driven != nullptr) {
    put_events();
    return;
  }
  delivering = &impl_->unit;
  // Malformed frames throw: what was put before still runs.
  struct finish {
    inline_unit& unit;
    ~finish() {
      unit.run();
      delivering = nullptr;
    }
  } const run_jobs{impl_->unit};
  put_events();
}

void runtime::stop() {
  std::vector<caf::actor_addr> actors;
  {
    const std::lock_guard lock(impl_->actors_mutex);
    if (std::exchange(impl_->stopped, true)) {
      return;
    }
    actors = impl_->actors;
  }
  for (const auto& address : actors) {
    if (auto actor = caf::actor_cast<caf::actor>(address)) {
      caf::anon_send_exit(actor, caf::exit_reason::kill);
    }
  }
  if (impl_->driven != nullptr) {
    while (impl_->driven->has_job()) {
      impl_->driven->run_once();
    }
  }
  impl_->system.await_all_actors_done();
}

std::size_t runtime::runnable() const {
  return impl_->driven->jobs.size();
}

void runtime::run_one(std::size_t index) {
  auto& jobs = impl_->driven->jobs;
  std::rotate(jobs.begin(), jobs.begin() + static_cast<std::ptrdiff_t>(index),
              jobs.begin() + static_cast<std::ptrdiff_t>(index) + 1);
  impl_->driven->run_once();
}

std::optional<std::int64_t> runtime::next_timeout_ns() const {
  auto& clock = impl_->driven->clock();
  if (clock.schedule().empty()) {
    return std::nullopt;
  }
  const auto left = clock.schedule().begin()->first - clock.current_time;
  return std::max<std::int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(left).count(),
                                0);
}

void runtime::advance(std::int64_t delta_ns) {
  impl_->driven->advance_time(std::chrono::nanoseconds(delta_ns));
}

}  // namespace eldr::actors
