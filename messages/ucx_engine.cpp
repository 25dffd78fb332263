#include "messages/ucx_engine.hpp"

#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "messages/ucx_engine_link.hpp"

namespace eldr::messages {

namespace {

constexpr std::int64_t ms = 1'000'000;
/// How often sockets are looked at while UCX keeps the thread busy.
constexpr std::int64_t socket_interval_ns = ms;
/// How long stop() lets queued frames go out and peers confirm.
constexpr std::int64_t stop_ns = 500 * ms;
/// How long stop() then waits for UCX to let go of its requests.
constexpr std::int64_t settle_ns = 2000 * ms;
/// Sleep in one piece; nothing depends on it.
constexpr int sleep_ms_max = 1000;
/// Sleep while something is to be watched that no descriptor tells of.
constexpr int watch_ms = 2;

constexpr std::uint64_t listener_tag = 0;
constexpr std::uint64_t inbox_tag = 1;
constexpr std::uint64_t ucx_tag = 2;

constexpr int progress_turns = 16;

void add_to_epoll(int epoll, int fd, std::uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::runtime_error(std::string("cannot wait for a descriptor: ") + std::strerror(errno));
  }
}

}  // namespace

std::int64_t clock_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool log_limit::allow(std::int64_t now_ns) noexcept {
  const auto second = now_ns / (1000 * ms);
  if (second != second_) {
    second_ = second;
    lines_ = 0;
  }
  return ++lines_ <= lines_per_second;
}

ucx_engine::ucx_engine(setup with)
    : self_(std::move(with.self)),
      options_(std::move(with.options)),
      proof_(options_.token),
      regions_(std::move(with.regions)),
      listener_(std::move(with.listener)),
      worker_(std::move(with.worker)),
      common_(std::move(with.common)),
      events_(*with.events),
      worker_address_(worker_->address()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (listener_) {
    add_to_epoll(epoll_.get(), listener_.get(), listener_tag);
  }
  add_to_epoll(epoll_.get(), common_->commands.event_fd(), inbox_tag);
  add_to_epoll(epoll_.get(), worker_->event_fd(), ucx_tag);

  for (const auto& region : regions_) {
    memory_.emplace_back(reinterpret_cast<std::byte*>(region.address), region.bytes);
  }
  // Persistent data is aligned and may be kept until it is given back; what is read is copied to
  // its place at once.
  handle(frame_am_id, on_frame, UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA);
  handle(read_am_id, on_read, UCP_AM_FLAG_WHOLE_MSG);
}

ucx_engine::~ucx_engine() = default;

// --- commands -----------------------------------------------------------------------------------

void send_item::run(ucx_engine& engine, std::unique_ptr<command> self) {
  engine.submit(std::unique_ptr<send_item>(static_cast<send_item*>(self.release())));
}

void get_item::run(ucx_engine& engine, std::unique_ptr<command> self) {
  engine.start_get(std::unique_ptr<get_item>(static_cast<get_item*>(self.release())));
}

void ucx_engine::submit(std::unique_ptr<send_item> item) {
  auto* session = find(item->session);
  if (session == nullptr) {
    return;  // It ended while the message was queued.
  }
  if (item->keeps_awake) {
    stayed_active();
  }
  session->submit(std::move(item));
}

void ucx_engine::start_get(std::unique_ptr<get_item> item) {
  live_counters::add(common_->counters.gets);
  stayed_active();
  auto* session = find(item->session);
  if (session == nullptr) {
    item->done(get_status::no_session);
    return;
  }
  session->start_get(std::move(item));
}

void ucx_engine::end(session_id id, end_reason reason, const std::string& detail) {
  if (auto* session = find(id)) {
    end_session(*session, reason, detail);
  }
}

// --- the loop -----------------------------------------------------------------------------------

void ucx_engine::run() {
  stayed_active();
  for (;;) {
    const bool busy = turn();
    const auto now = clock_ns();
    tend_deadlines(now);
    if (stop_deadline_ns_ != 0 && by_nonce_.empty() &&
        (ended_.empty() || now > stop_deadline_ns_ + settle_ns)) {
      break;
    }
    if (busy || now - active_ns_ < std::int64_t{options_.spin_us} * 1000) {
      if (now - sockets_ns_ > socket_interval_ns) {
        poll_sockets(0);
      }
      if (!busy) {
        // Others on the same cores get their turn: a spin without it starves them and us.
        ::sched_yield();
      }
    } else {
      sleep(now);
    }
  }
  run_commands();  // Answers what came in between.
}

bool ucx_engine::turn() {
  bool busy = run_commands();
  busy |= worker_->take_released([this](const ucx_frame& frame) { released(frame); });
  busy |= progress_ucx();
  busy |= attend_sessions();
  busy |= sweep_ended();
  return busy;
}

bool ucx_engine::run_commands() {
  auto* item = common_->commands.take_all();
  const bool any = item != nullptr;
  while (item != nullptr) {
    std::unique_ptr<command> current(std::exchange(item, item->next));
    auto* what = current.get();
    what->run(*this, std::move(current));
  }
  return any;
}

bool ucx_engine::progress_ucx() {
  int turns = 0;
  while (turns < progress_turns && ucp_worker_progress(worker_->get()) != 0) {
    ++turns;
  }
  return turns > 0;
}

void ucx_engine::needs_attention(ucx_session& session) {
  if (!std::exchange(session.attention, true)) {
    attention_.push_back(&session);
  }
}

bool ucx_engine::attend_sessions() {
  if (attention_.empty()) {
    return false;
  }
  for (auto* session : std::exchange(attention_, {})) {
    session->attention = false;
    if (session->state != ucx_session::phase::ended) {
      attend(*session);
    }
  }
  return true;
}

void ucx_engine::attend(ucx_session& session) {
  if (session.state == ucx_session::phase::opening && session.heard() && !session.failure()) {
    finish_opening(session);
  }
  if (session.state == ucx_session::phase::open && !session.failure()) {
    session.pump();
    session.advance_gets();
    session.answer_reads();
  }
  if (session.fin_deadline_ns != 0 && session.received_last()) {
    end_session(session, end_reason::closed_by_peer, "the peer stopped");
  } else if (session.failure()) {
    give_up(session);
  }
}

bool ucx_engine::sweep_ended() {
  const auto erased = std::erase_if(ended_, [this](session_ptr& session) {
    if (!session->settle(clock_ns())) {
      return false;
    }
    common_->table.release(session->id());
    std::erase(attention_, session.get());
    return true;
  });
  return erased > 0;
}

void ucx_engine::tend_deadlines(std::int64_t now_ns) {
  if (handshakes_ > 0) {
    std::vector<std::uint64_t> late;
    for (const auto& [id, each] : links_) {
      if (each->at != link::stage::live && now_ns > each->deadline_ns) {
        late.push_back(id);
      }
    }
    for (const auto id : late) {
      if (const auto found = links_.find(id); found != links_.end()) {
        abandon(*found->second,
                "no answer within " + std::to_string(options_.limits.dial_timeout_ms) + " ms");
      }
    }
  }
  if (fins_expected_ > 0) {
    for (auto* session : std::vector(by_slot_.begin(), by_slot_.end())) {
      if (session != nullptr && session->fin_deadline_ns != 0 &&
          now_ns > session->fin_deadline_ns) {
        end_session(*session, end_reason::closed_by_peer, "the peer stopped");
      }
    }
  }
  if (stop_deadline_ns_ != 0) {
    stop_sessions(now_ns);
  }
}

// --- waiting ------------------------------------------------------------------------------------

int ucx_engine::sleep_ms(std::int64_t now_ns) const {
  if (!ended_.empty() || fins_expected_ > 0 || stop_deadline_ns_ != 0) {
    return watch_ms;
  }
  auto until_ns = now_ns + sleep_ms_max * ms;
  if (handshakes_ > 0) {
    for (const auto& [id, each] : links_) {
      if (each->at != link::stage::live) {
        until_ns = std::min(until_ns, each->deadline_ns + ms);
      }
    }
  }
  return static_cast<int>(std::max<std::int64_t>((until_ns - now_ns) / ms, 0));
}

void ucx_engine::sleep(std::int64_t now_ns) {
  if (!common_->commands.prepare_to_sleep()) {
    return;
  }
  // Arming fails while there are events to progress; then it is no time to sleep.
  if (!worker_->has_released() && ucp_worker_arm(worker_->get()) == UCS_OK) {
    live_counters::add(common_->counters.sleeps);
    poll_sockets(sleep_ms(now_ns));
  }
  common_->commands.awake();
}

void ucx_engine::poll_sockets(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const auto count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  sockets_ns_ = clock_ns();
  for (int i = 0; i < count; ++i) {
    switch (const auto tag = events[static_cast<std::size_t>(i)].data.u64) {
      case listener_tag:
        accept_links();
        break;
      case inbox_tag:
        common_->commands.clear();
        break;
      case ucx_tag:
        break;  // The next turn progresses it.
      default:
        serve(tag);
        break;
    }
  }
}

// --- stopping -----------------------------------------------------------------------------------

void ucx_engine::request_stop() {
  if (stop_deadline_ns_ != 0) {
    return;
  }
  stop_deadline_ns_ = clock_ns() + stop_ns;
  listener_.reset();
  std::vector<std::uint64_t> unfinished;
  for (const auto& [id, each] : links_) {
    if (each->at != link::stage::live) {
      unfinished.push_back(id);
    }
  }
  for (const auto id : unfinished) {
    if (const auto found = links_.find(id); found != links_.end()) {
      abandon(*found->second, "this node stops");
    }
  }
}

void ucx_engine::stop_sessions(std::int64_t now_ns) {
  for (auto* session : std::vector(by_slot_.begin(), by_slot_.end())) {
    if (session == nullptr) {
      continue;
    }
    common_->table.close(session->id());
    if (now_ns > stop_deadline_ns_) {
      end_session(*session, end_reason::closed_here, "stopped");
    } else if (!session->told_stop && session->idle()) {
      session->told_stop = true;
      tell(*session, record_code::stopped);  // The peer hangs up once it has everything.
    }
  }
}

}  // namespace eldr::messages
