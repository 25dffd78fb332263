#include "messages/memory_network.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <stdexcept>

#include "messages/memory_session.hpp"
#include "messages/memory_transport.hpp"

namespace eldr::messages {

using memory::dial_ptr;
using memory::session_end;

namespace {

std::pair<std::string, std::string> unordered_pair(const std::string& a, const std::string& b) {
  return std::minmax(a, b);
}

peer describe(const memory::process& other, session_id session) {
  peer result{session, other.id, {}};
  for (std::uint32_t i = 0; i < other.regions.size(); ++i) {
    result.regions.push_back({i, other.regions[i].bytes});
  }
  return result;
}

}  // namespace

memory_network::impl::~impl() {
  for (auto& [name, process] : processes_) {
    process->life = memory::process::state::dead;
    process->sessions.clear();  // Ends own their process and the other way round.
  }
}

// --- processes ----------------------------------------------------------------------------------

memory::process_ptr memory_network::impl::attach(identity id, std::string token) {
  if (id.node.empty() || id.incarnation == 0) {
    throw std::runtime_error("a node needs a name and an incarnation other than 0");
  }
  if (find(id.node) != nullptr) {
    throw std::runtime_error("node " + id.node + " is attached already; kill or stop it first");
  }
  auto process = std::make_shared<memory::process>();
  process->id = std::move(id);
  process->token = std::move(token);
  processes_[process->id.node] = process;
  return process;
}

memory::process_ptr memory_network::impl::find(const std::string& node) const {
  const auto found = processes_.find(node);
  return found == processes_.end() ? nullptr : found->second;
}

memory::process_ptr memory_network::impl::listener_at(const std::string& address) const {
  for (const auto& [name, process] : processes_) {
    if (process->running() && !address.empty() && process->id.address == address) {
      return process;
    }
  }
  return nullptr;
}

void memory_network::impl::start(const process_ptr& process, transport_events& events) {
  if (process->life != memory::process::state::attached) {
    throw std::logic_error("a transport starts once");
  }
  if (listener_at(process->id.address) != nullptr) {
    throw std::runtime_error("address " + process->id.address +
                             " is in use; give the node another one or stop what listens there");
  }
  process->events = &events;
  process->life = memory::process::state::running;
}

void memory_network::impl::stop(const process_ptr& process) {
  if (process->over()) {
    return;
  }
  for (const auto& [id, end] : std::map(process->sessions)) {
    flush(end);
    end_now(end, end_reason::closed_here, "stopped");
  }
  process->life = memory::process::state::stopped;
  processes_.erase(process->id.node);
  events_.recheck();
}

void memory_network::impl::kill(const process_ptr& process) {
  if (process->over()) {
    return;
  }
  process->life = memory::process::state::dead;
  processes_.erase(process->id.node);
  const std::string detail = "the process of " + process->id.node + " ended";
  for (const auto& [id, end] : std::exchange(process->sessions, {})) {
    end->state = session_end::phase::ended;
    end->waiting.clear();
    end->reads.clear();
    break_connection(end);
    if (auto other = end->other.lock()) {
      events_.schedule(events_.now_ns() + detection(), between(other->owner, process),
                       [this, other, detail] { lose(other, end_reason::closed_by_peer, detail); });
    }
  }
  process->counted.sessions_open = 0;
  events_.recheck();
}

void memory_network::impl::set_frozen(const std::string& node, bool frozen) {
  if (const auto process = find(node)) {
    process->frozen = frozen;
    events_.recheck();
  }
}

void memory_network::impl::set_partition(const std::string& a, const std::string& b, bool apart) {
  if (apart) {
    partitions_.insert(unordered_pair(a, b));
  } else {
    partitions_.erase(unordered_pair(a, b));
  }
  events_.recheck();
}

bool memory_network::impl::apart(const std::string& a, const std::string& b) const {
  return partitions_.contains(unordered_pair(a, b));
}

void memory_network::impl::drop(const std::string& a, const std::string& b) {
  const auto process = find(a);
  if (process == nullptr) {
    return;
  }
  for (const auto& [id, end] : process->sessions) {
    const auto other = end->other.lock();
    if (end->remote.id.node != b || end->broken || other == nullptr) {
      continue;
    }
    for (const auto& side : {end, other}) {
      break_connection(side);
      events_.schedule(events_.now_ns() + detection(), at(side->owner), [this, side] {
        lose(side, end_reason::transport_error, "connection lost");
      });
    }
  }
}

// --- dialling -----------------------------------------------------------------------------------

void memory_network::impl::dial(const process_ptr& process, const std::string& address) {
  if (!process->running()) {
    return;
  }
  auto attempt = std::make_shared<memory::dial_attempt>(process, address);
  const auto timeout_ms = options_.limits.dial_timeout_ms;
  auto undecided = [attempt, alive = at(process)] {
    return attempt->settled ? gate_state::void_ : alive();
  };
  events_.schedule(events_.now_ns() + std::int64_t{timeout_ms} * 1'000'000, undecided,
                   [this, attempt, timeout_ms] {
                     dial_fails(attempt, "no answer from " + attempt->address + " within " +
                                             std::to_string(timeout_ms) + " ms");
                   });
  // Whoever listens there when the knock arrives has to be running and within reach.
  auto reachable = [this, attempt] {
    if (!attempt->from->running() || attempt->settled) {
      return gate_state::void_;
    }
    const auto listener = listener_at(attempt->address);
    const bool held = listener != nullptr &&
                      (listener->frozen || apart(attempt->from->id.node, listener->id.node));
    return held ? gate_state::held : gate_state::open;
  };
  events_.schedule(events_.now_ns() + delay(), reachable, [this, attempt] { connect(attempt); });
}

void memory_network::impl::connect(const dial_ptr& attempt) {
  if (attempt->settled) {
    return;
  }
  const auto listener = listener_at(attempt->address);
  if (listener == nullptr) {
    refuse(attempt, "nobody listens at " + attempt->address + "; check that the node runs there");
  } else if (listener->id.node == attempt->from->id.node) {
    refuse(attempt, "node " + listener->id.node + " was told to open a session with itself");
  } else if (attempt->from->token != options_.token || listener->token != options_.token) {
    spdlog::warn("{}: refused a connection that did not present the cluster's token",
                 listener->id.node);
    ++listener->counted.handshakes_refused;
    refuse(attempt, attempt->address + " refused this node's token; both must read the same file");
  } else {
    accept(attempt, listener);
  }
}

void memory_network::impl::refuse(const dial_ptr& attempt, const std::string& error) {
  events_.schedule(events_.now_ns() + delay(), at(attempt->from),
                   [this, attempt, error] { dial_fails(attempt, error); });
}

bool memory_network::impl::settle(const dial_ptr& attempt) {
  if (std::exchange(attempt->settled, true)) {
    return false;
  }
  events_.recheck();  // So that its timeout does not count as something still to come.
  return true;
}

void memory_network::impl::dial_fails(const dial_ptr& attempt, const std::string& error) {
  if (!settle(attempt) || !attempt->from->running()) {
    return;
  }
  record(1, *attempt->from, error.size());
  call([&] { attempt->from->events->dial_failed(attempt->address, error); });
}

void memory_network::impl::accept(const dial_ptr& attempt, const process_ptr& listener) {
  const auto window = options_.limits.credit_frames;
  const auto& dialer = attempt->from;
  auto near = std::make_shared<session_end>(dialer, describe(*listener, ++sessions_), window);
  auto far = std::make_shared<session_end>(listener, describe(*dialer, ++sessions_), window);
  near->other = far;
  far->other = near;
  near->dial = attempt;
  dialer->sessions.emplace(near->remote.session, near);
  open(far);
  events_.schedule(events_.now_ns() + delay(), between(dialer, listener),
                   [this, attempt, near, far] {
                     welcome(attempt, near);
                     schedule_lane(far, traffic::bulk);
                     schedule_lane(far, traffic::reserved);
                   });
}

void memory_network::impl::welcome(const dial_ptr& attempt, const end_ptr& near) {
  if (near->state != session_end::phase::opening) {
    return;  // Lost on the way; the dial has failed already.
  }
  if (!settle(attempt)) {
    near->state = session_end::phase::ended;
    near->owner->sessions.erase(near->remote.session);
    tell_peer(near, end_reason::closed_by_peer, "the dialer gave up");
    return;
  }
  near->dial.reset();
  open(near);
}

// --- sessions -----------------------------------------------------------------------------------

void memory_network::impl::open(const end_ptr& end) {
  replace_older(end);
  auto& process = *end->owner;
  if (!process.running()) {
    return;  // Its own handler of the older session's end stopped it.
  }
  end->state = session_end::phase::open;
  process.sessions.emplace(end->remote.session, end);
  ++process.counted.sessions_open;
  ++process.counted.sessions_total;
  record(2, process, end->remote.session);
  call([&] { process.events->opened(end->remote); });
}

void memory_network::impl::replace_older(const end_ptr& newer) {
  for (const auto& [id, older] : std::map(newer->owner->sessions)) {
    const bool ours =
        older->state == session_end::phase::open || older->state == session_end::phase::closing;
    if (older == newer || older->remote.id.node != newer->remote.id.node || !ours) {
      continue;
    }
    const std::string detail = "a newer session with " + newer->remote.id.node + " took its place";
    end_now(older, end_reason::replaced, detail);
    tell_peer(older, end_reason::replaced, detail);
  }
}

void memory_network::impl::end_now(const end_ptr& end, end_reason reason,
                                   const std::string& detail) {
  if (end->state == session_end::phase::ended) {
    return;
  }
  auto& process = *end->owner;
  const bool was_open = end->state != session_end::phase::opening;
  end->state = session_end::phase::ended;
  process.sessions.erase(end->remote.session);
  end->waiting.clear();
  if (!was_open) {
    dial_fails(end->dial,
               "the session with " + end->remote.id.node + " ended as it opened: " + detail);
    return;
  }
  --process.counted.sessions_open;
  record(3, process, end->remote.session * 16 + static_cast<std::uint64_t>(reason));
  call([&] { process.events->ended(end->remote, reason, detail); });
  for (const auto& read : std::exchange(end->reads, {})) {
    if (process.running()) {
      call([&] { read->done(get_status::failed); });
    }
  }
}

void memory_network::impl::close_end(const end_ptr& end, end_reason reason,
                                     const std::string& detail) {
  end->state = session_end::phase::closing;
  end->waiting.clear();
  events_.schedule(events_.now_ns(), at(end->owner),
                   [this, end, reason, detail] { end_now(end, reason, detail); });
  tell_peer(end, end_reason::closed_by_peer, detail);
}

void memory_network::impl::close(const process_ptr& process, session_id session,
                                 const std::string& detail) {
  if (const auto end = find_open(process, session)) {
    close_end(end, end_reason::closed_here, detail);
  }
}

void memory_network::impl::lose(const end_ptr& end, end_reason reason, const std::string& detail) {
  if (end->state != session_end::phase::closing) {
    end_now(end, reason, detail);
  }
}

void memory_network::impl::tell_peer(const end_ptr& end, end_reason reason,
                                     const std::string& detail) {
  const auto other = end->other.lock();
  if (other == nullptr || end->broken) {
    return;  // Each end of a lost connection finds out for itself.
  }
  events_.schedule(events_.now_ns() + delay(), between(other->owner, end->owner),
                   [this, other, reason, detail] { lose(other, reason, detail); });
}

void memory_network::impl::break_connection(const end_ptr& end) {
  end->broken = true;
  for (auto& lane : end->lanes) {
    // Of what had been sent, a prefix still arrives.
    const auto kept = events_.draw(0, static_cast<std::int64_t>(lane.frames.size()));
    lane.frames.resize(static_cast<std::size_t>(kept));
  }
}

// --- gates and history --------------------------------------------------------------------------

virtual_events::gate memory_network::impl::at(process_ptr process) const {
  return [process = std::move(process)] {
    if (!process->running()) {
      return gate_state::void_;
    }
    return process->frozen ? gate_state::held : gate_state::open;
  };
}

virtual_events::gate memory_network::impl::between(process_ptr process, process_ptr other,
                                                   bool needs_other) const {
  return [this, process = std::move(process), other = std::move(other), needs_other] {
    if (!process->running() || (needs_other && !other->running())) {
      return gate_state::void_;
    }
    const bool held = process->frozen || (needs_other && other->frozen) ||
                      apart(process->id.node, other->id.node);
    return held ? gate_state::held : gate_state::open;
  };
}

void memory_network::impl::record(std::uint64_t kind, const memory::process& process,
                                  std::uint64_t value) {
  for (const std::uint64_t part :
       {kind, process.id.incarnation, static_cast<std::uint64_t>(events_.now_ns()), value}) {
    history_ = (history_ ^ part) * 0x9e3779b97f4a7c15u;
    history_ ^= history_ >> 29;
  }
}

// --- the public class ---------------------------------------------------------------------------

memory_network::memory_network(network_options options)
    : impl_(std::make_shared<impl>(std::move(options))) {}
memory_network::~memory_network() = default;

std::unique_ptr<transport> memory_network::attach(identity id, std::string token) {
  return memory::make_transport(*impl_, impl_->attach(std::move(id), std::move(token)));
}

std::int64_t memory_network::now_ns() const noexcept {
  return impl_->events().now_ns();
}

std::optional<std::int64_t> memory_network::next_due_ns() const {
  return impl_->events().next_due_ns();
}

std::size_t memory_network::advance_to(std::int64_t now_ns) {
  std::size_t delivered = 0;
  while (impl_->events().run_next(now_ns)) {
    ++delivered;
  }
  impl_->events().set_now(now_ns);
  return delivered;
}

void memory_network::set_now(std::int64_t now_ns) {
  impl_->events().set_now(now_ns);
}

bool memory_network::deliver_one() {
  return impl_->events().run_next(now_ns());
}

void memory_network::kill(const std::string& node) {
  if (const auto process = impl_->find(node)) {
    impl_->kill(process);
  }
}
void memory_network::freeze(const std::string& node) {
  impl_->set_frozen(node, true);
}
void memory_network::thaw(const std::string& node) {
  impl_->set_frozen(node, false);
}
void memory_network::partition(const std::string& a, const std::string& b) {
  impl_->set_partition(a, b, true);
}
void memory_network::heal(const std::string& a, const std::string& b) {
  impl_->set_partition(a, b, false);
}
void memory_network::drop(const std::string& a, const std::string& b) {
  impl_->drop(a, b);
}
void memory_network::corrupt_next_get(const std::string& puller) {
  if (const auto process = impl_->find(puller)) {
    process->corrupt_next_get = true;
  }
}
std::uint64_t memory_network::history_hash() const noexcept {
  return impl_->history_hash();
}

}  // namespace eldr::messages
