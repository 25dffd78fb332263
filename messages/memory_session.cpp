#include "messages/memory_session.hpp"

#include <kj/exception.h>
#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "messages/get_plan.hpp"
#include "messages/message_view.hpp"

namespace eldr::messages {

using memory::read;
using memory::read_ptr;
using memory::session_end;

namespace {

/// A message received: the sender's own arena.
class memory_frame final : public frame {
 public:
  memory_frame(memory::message what, std::weak_ptr<memory_network::impl> network,
               const memory::end_ptr& to)
      : what_(std::move(what)),
        view_(segments(*what_.content)),
        network_(std::move(network)),
        to_(to),
        session_(to->remote.session) {}

  ~memory_frame() override {
    const auto network = network_.lock();
    const auto to = to_.lock();
    if (what_.cls == traffic::bulk && network != nullptr && to != nullptr) {
      network->frame_released(to);
    }
  }

  wire::Message::Reader root() const override { return view_.root(); }
  std::size_t bytes() const noexcept override { return what_.bytes; }
  std::uint64_t session() const noexcept override { return session_; }

 private:
  static std::span<const kj::ArrayPtr<const capnp::word>> segments(outgoing& content) {
    const auto all = content.arena().getSegmentsForOutput();
    return {all.begin(), all.size()};
  }

  memory::message what_;
  message_view view_;
  std::weak_ptr<memory_network::impl> network_;
  std::weak_ptr<session_end> to_;
  session_id session_;
};

std::uint64_t content_hash(outgoing& content) {
  std::uint64_t hash = 0;
  for (const auto segment : content.arena().getSegmentsForOutput()) {
    hash = XXH3_64bits_withSeed(segment.begin(), segment.size() * sizeof(capnp::word), hash);
  }
  return hash;
}

get_status check(const session_end* end, std::uint32_t region,
                 const std::vector<get_range>& ranges) {
  if (end == nullptr || region >= end->remote.regions.size()) {
    return get_status::no_session;
  }
  return within(ranges, end->remote.regions[region].bytes) ? get_status::ok
                                                           : get_status::out_of_range;
}

}  // namespace

// --- frames -------------------------------------------------------------------------------------

memory::end_ptr memory_network::impl::find_open(const process_ptr& process,
                                                session_id session) const {
  const auto found = process->sessions.find(session);
  return found != process->sessions.end() && found->second->is_open() ? found->second : nullptr;
}

bool memory_network::impl::over_bounds(const session_end& end, const memory::message& what) const {
  const auto& limits = options_.limits;
  if (what.cls == traffic::reserved) {
    return end.lanes[static_cast<std::size_t>(traffic::reserved)].frames.size() >=
           limits.reserved_frames_max;
  }
  return !end.lent.empty()
             ? false
             : end.waiting.size() >= limits.queue_frames_max ||
                   end.queued_bytes + what.bytes > limits.queue_bytes_max_of(end.remote.id);
}

send_result memory_network::impl::send(const process_ptr& process, session_id session,
                                       outgoing_ptr content) {
  const auto end = find_open(process, session);
  if (end == nullptr) {
    return send_result::no_session;
  }
  const auto cls = traffic_class(content->root().which());
  const auto bytes = content->bytes();
  const auto segments = content->arena().getSegmentsForOutput().size();
  memory::message what{std::move(content), bytes, cls};
  if (bytes > options_.limits.frame_bytes_max || segments > segments_max) {
    close_end(end, end_reason::overflow, "a message to " + end->remote.id.node + " was too large");
    return send_result::too_large;
  }
  if (over_bounds(*end, what)) {
    close_end(end, end_reason::overflow, "the queue to " + end->remote.id.node + " is full");
    return send_result::overflow;
  }
  if (cls == traffic::reserved) {
    put_on_wire(end, std::move(what));
    return send_result::queued;
  }
  if (end->lent.empty()) {
    ++process->counted.credit_stalls;
  }
  end->queued_bytes += bytes;
  end->waiting.push_back(std::move(what));
  pump(end);
  return send_result::queued;
}

void memory_network::impl::pump(const end_ptr& end) {
  while (!end->waiting.empty() && !end->lent.empty()) {
    end->lent.take();
    auto what = std::move(end->waiting.front());
    end->waiting.pop_front();
    end->queued_bytes -= what.bytes;
    put_on_wire(end, std::move(what));
  }
}

void memory_network::impl::put_on_wire(const end_ptr& from, memory::message what) {
  ++from->owner->counted.frames_sent;
  from->owner->counted.bytes_sent += what.bytes;
  if (from->broken) {
    return;
  }
  const auto cls = what.cls;
  auto& lane = from->lane_of(cls);
  lane.last_due_ns = std::max(events_.now_ns() + delay(), lane.last_due_ns);
  lane.frames.push_back({std::move(what), from->owed.take(), lane.last_due_ns});
  schedule_lane(from, cls);
}

void memory_network::impl::schedule_lane(const end_ptr& from, traffic cls) {
  auto& lane = from->lane_of(cls);
  const auto to = from->other.lock();
  if (lane.scheduled || lane.frames.empty() || to == nullptr ||
      to->state == session_end::phase::opening) {
    return;  // Nothing to do, or not yet: welcome() comes back to it.
  }
  lane.scheduled = true;
  events_.schedule(lane.frames.front().due_ns, between(to->owner, from->owner),
                   [this, from, cls] { deliver(from, cls); });
}

void memory_network::impl::deliver(const end_ptr& from, traffic cls) {
  auto& lane = from->lane_of(cls);
  lane.scheduled = false;
  const auto to = from->other.lock();
  if (to == nullptr || !to->is_open()) {
    if (to != nullptr) {
      to->owner->counted.late_frames_dropped += lane.frames.size();
    }
    lane.frames.clear();
    return;
  }
  if (lane.frames.empty()) {
    return;  // Lost with the connection.
  }
  auto item = std::move(lane.frames.front());
  lane.frames.pop_front();
  schedule_lane(from, cls);
  grant(to, item.credits);
  hand_over(to, std::move(item.what));
  if (from->fin_pending) {
    tell_fin(from);
  }
}

void memory_network::impl::hand_over(const end_ptr& to, memory::message what) {
  auto& process = *to->owner;
  ++process.counted.frames_received;
  process.counted.bytes_received += what.bytes;
  record(4, process, to->remote.session ^ content_hash(*what.content));
  try {
    auto received = std::make_shared<memory_frame>(std::move(what), weak_from_this(), to);
    call([&] { process.events->received(std::move(received)); });
  } catch (const kj::Exception& error) {
    ++process.counted.malformed;
    spdlog::warn("{}: ended the session with {}, which sent a malformed message: {}",
                 process.id.node, to->remote.id.node, error.getDescription().cStr());
    end_now(to, end_reason::malformed, error.getDescription().cStr());
    tell_peer(to, end_reason::closed_by_peer, "the peer received a malformed message");
  }
}

void memory_network::impl::flush(const end_ptr& end) {
  if (end->state != session_end::phase::open) {
    return;
  }
  for (auto& what : std::exchange(end->waiting, {})) {
    put_on_wire(end, std::move(what));
  }
  end->fin_pending = true;
  tell_fin(end);
}

void memory_network::impl::tell_fin(const end_ptr& end) {
  if (end->lanes[0].frames.empty() && end->lanes[1].frames.empty()) {
    end->fin_pending = false;
    tell_peer(end, end_reason::closed_by_peer, "the peer stopped");
  }
}

// --- credits ------------------------------------------------------------------------------------

void memory_network::impl::frame_released(const end_ptr& receiver) {
  if (!receiver->is_open()) {
    return;
  }
  receiver->owed.add();
  if (receiver->owed.due()) {
    send_credits_owed(receiver);
  }
}

void memory_network::impl::send_credits_owed(const end_ptr& from) {
  const auto to = from->other.lock();
  const auto credits = from->owed.take();
  if (to == nullptr || from->broken) {
    return;
  }
  events_.schedule(events_.now_ns() + delay(), between(to->owner, from->owner),
                   [this, to, credits] { grant(to, credits); });
}

void memory_network::impl::grant(const end_ptr& to, std::uint32_t credits) {
  if (to->is_open() && credits > 0) {
    // Both ends are this program, so more than was lent cannot come back.
    (void)to->lent.grant(credits);
    pump(to);
  }
}

// --- one-sided reads ----------------------------------------------------------------------------

void memory_network::impl::get(const process_ptr& process, session_id session, std::uint32_t region,
                               std::vector<get_range> ranges, get_callback done) {
  if (!process->running()) {
    return;
  }
  const auto end = find_open(process, session);
  const auto status = check(end.get(), region, ranges);
  const auto target = end == nullptr ? nullptr : end->other.lock();
  ++process->counted.gets;
  if (status != get_status::ok || ranges.empty()) {
    events_.schedule(events_.now_ns(), at(process),
                     [this, status, done = std::move(done)] { call([&] { done(status); }); });
    return;
  }
  auto reading = std::make_shared<read>();
  reading->by = end;
  reading->region = region;
  reading->ranges = std::move(ranges);
  reading->corrupt = std::exchange(process->corrupt_next_get, false);
  reading->done = std::move(done);
  end->reads.push_back(reading);
  if (target != nullptr) {
    schedule_read(reading, end, target);
  }
}

void memory_network::impl::schedule_read(const read_ptr& reading, const end_ptr& by,
                                         const end_ptr& target) {
  events_.schedule(events_.now_ns() + delay(), between(by->owner, target->owner, true),
                   [this, reading] { step_read(reading); });
}

void memory_network::impl::step_read(const read_ptr& reading) {
  const auto by = reading->by.lock();
  const auto target = by == nullptr ? nullptr : by->other.lock();
  if (by == nullptr || !by->is_open() || target == nullptr || !target->is_open() || by->broken) {
    return;  // The end of the session at the reader settles it.
  }
  auto& process = *by->owner;
  const auto* memory = target->owner->regions[reading->region].memory.get();
  const auto left = static_cast<std::int64_t>(reading->ranges.size() - reading->next);
  for (auto count = events_.draw(1, left); count > 0; --count) {
    const auto& range = reading->ranges[reading->next++];
    if (range.length > 0) {
      std::memcpy(range.local, memory + range.remote_offset, range.length);
    }
    process.counted.get_bytes += range.length;
    if (range.length > 0 && std::exchange(reading->corrupt, false)) {
      range.local[static_cast<std::size_t>(
          events_.draw(0, static_cast<std::int64_t>(range.length) - 1))] ^= std::byte{0x40};
    }
  }
  if (reading->next < reading->ranges.size()) {
    schedule_read(reading, by, target);
    return;
  }
  std::erase(by->reads, reading);
  record(5, process, reading->ranges.size());
  call([&] { reading->done(get_status::ok); });
}

}  // namespace eldr::messages
