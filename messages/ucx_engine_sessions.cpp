#include <kj/exception.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "messages/ucx_engine.hpp"
#include "messages/ucx_engine_link.hpp"

namespace eldr::messages {

namespace {

/// How long frames that a stopping peer announced may take.
constexpr std::int64_t fin_ns = 300'000'000;

record_code code_for(end_reason reason) noexcept {
  switch (reason) {
    case end_reason::replaced:
      return record_code::replaced;
    case end_reason::malformed:
      return record_code::malformed;
    case end_reason::overflow:
      return record_code::overflow;
    case end_reason::transport_error:
      return record_code::failed;
    case end_reason::closed_here:
    case end_reason::closed_by_peer:
      break;
  }
  return record_code::closed;
}

const char* explain(record_code code) noexcept {
  switch (code) {
    case record_code::malformed:
      return "the peer could not read what this node sent";
    case record_code::overflow:
      return "the peer's queue to this node is full";
    case record_code::failed:
      return "the peer's endpoint failed";
    default:
      return "the peer closed the session";
  }
}

}  // namespace

// --- receiving ----------------------------------------------------------------------------------

void ucx_engine::handle(unsigned am_id, ucp_am_recv_callback_t callback, unsigned flags) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = am_id;
  handler.cb = callback;
  handler.arg = this;
  handler.flags = flags;
  ucx_check(ucp_worker_set_am_recv_handler(worker_->get(), &handler), "cannot receive through UCX");
}

ucx_session* ucx_engine::addressee(std::span<const std::byte> header,
                                   const ucp_am_recv_param_t& param) {
  const auto found = by_nonce_.find(nonce_of(header));
  if (found == by_nonce_.end()) {
    live_counters::add(common_->counters.late_frames_dropped);
    return nullptr;
  }
  auto* session = found->second.get();
  if ((param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    session->fail(end_reason::malformed, "message sent by rendezvous");
  }
  return session->failure() ? nullptr : session;
}

ucs_status_t ucx_engine::on_frame(void* engine, const void* header, std::size_t header_length,
                                  void* data, std::size_t length,
                                  const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<ucx_engine*>(engine);
  const std::span bytes(static_cast<const std::byte*>(header), header_length);
  auto* session = self.addressee(bytes, *param);
  return session == nullptr ? UCS_OK : self.receive(*session, bytes, data, length);
}

ucs_status_t ucx_engine::on_read(void* engine, const void* header, std::size_t header_length,
                                 void* data, std::size_t length, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<ucx_engine*>(engine);
  const std::span bytes(static_cast<const std::byte*>(header), header_length);
  if (auto* session = self.addressee(bytes, *param)) {
    self.stayed_active();
    session->receive_read(bytes, {static_cast<const std::byte*>(data), length});
  }
  return UCS_OK;
}

ucs_status_t ucx_engine::receive(ucx_session& session, std::span<const std::byte> header,
                                 void* data, std::size_t length) {
  auto frame = session.receive(header, data, length);
  if (frame == nullptr) {
    return UCS_OK;
  }
  if (session.state == ucx_session::phase::opening) {
    session.early.push_back(std::move(frame));  // finish_opening() delivers it.
  } else {
    deliver(session, std::move(frame));
  }
  return UCS_INPROGRESS;  // UCX gets the buffer back when the frame is let go of.
}

void ucx_engine::deliver(ucx_session& session, frame_ptr frame) {
  try {
    if (!frame->root().isHeartbeat()) {
      stayed_active();
    }
    events_.received(std::move(frame));
  } catch (const kj::Exception& exception) {
    session.fail(end_reason::malformed, exception.getDescription().cStr());
  }
}

void ucx_engine::released(const ucx_frame& frame) {
  if (auto* session = find(frame.session())) {
    session->released(frame.cls());
  }
}

// --- opening ------------------------------------------------------------------------------------

ucx_session* ucx_engine::find(session_id id) noexcept {
  auto* session = by_slot_[id % sessions_max];
  return session != nullptr && session->id() == id ? session : nullptr;
}

ucx_session* ucx_engine::make_session(greeting theirs, std::uint64_t nonce, std::uint64_t link_id,
                                      std::string& error) {
  const auto id = by_nonce_.contains(nonce) ? 0 : common_->table.reserve();
  if (id == 0) {
    error = "node " + self_.node + " has no room for another session";
    return nullptr;
  }
  ucx_session::setup with{id,     nonce, self_.incarnation, std::move(theirs), options_.limits,
                          memory_};
  auto& limits = with.limits;
  limits.frame_bytes_max = std::min(limits.frame_bytes_max, with.theirs.frame_bytes_max);
  limits.credit_frames = std::min(limits.credit_frames, with.theirs.credit_frames);
  auto session = std::make_unique<ucx_session>(*worker_, common_->counters, *this, std::move(with));
  session->link = link_id;
  auto* result = session.get();
  by_nonce_.emplace(nonce, std::move(session));
  by_slot_[id % sessions_max] = result;
  return result;
}

void ucx_engine::finish_opening(ucx_session& session) {
  const auto found = links_.find(session.link);
  if (found == links_.end()) {
    return;
  }
  if (!found->second->dialer) {
    try {
      session.connect();
    } catch (const std::runtime_error& error) {
      abandon(*found->second, error.what());
      return;
    }
    tell(session, record_code::go);
  }
  open(session);
}

void ucx_engine::open(ucx_session& session) {
  replace_older(session);
  session.state = ucx_session::phase::open;
  if (const auto found = links_.find(session.link); found != links_.end()) {
    found->second->at = link::stage::live;
    --handshakes_;
  }
  common_->table.open(session.id(), options_.limits.queue_bytes_max_of(session.who().id));
  live_counters::add(common_->counters.sessions_open);
  live_counters::add(common_->counters.sessions_total);
  events_.opened(session.who());
  for (auto& frame : std::exchange(session.early, {})) {
    if (!session.failure()) {
      deliver(session, std::move(frame));
    }
  }
}

void ucx_engine::replace_older(const ucx_session& newer) {
  const auto& node = newer.who().id.node;
  for (auto* older : std::vector(by_slot_.begin(), by_slot_.end())) {
    if (older != nullptr && older != &newer && older->state == ucx_session::phase::open &&
        older->who().id.node == node) {
      end_session(*older, end_reason::replaced, "a newer session with " + node + " took its place");
    }
  }
}

// --- ending -------------------------------------------------------------------------------------

void ucx_engine::end_session(ucx_session& session, end_reason reason, const std::string& detail) {
  if (session.state == ucx_session::phase::ended) {
    return;
  }
  const bool was_open = session.state == ucx_session::phase::open;
  common_->table.close(session.id());
  tell(session, code_for(reason));
  session.link = 0;
  if (session.fin_deadline_ns != 0) {
    --fins_expected_;
  }
  session.shut(clock_ns());
  by_slot_[session.id() % sessions_max] = nullptr;
  auto owned = by_nonce_.extract(session.nonce());
  ended_.push_back(std::move(owned.mapped()));
  if (reason == end_reason::malformed) {
    live_counters::add(common_->counters.malformed);
    spdlog::warn("{}: ended the session with {}, which sent malformed bytes: {}", self_.node,
                 session.who().id.node, detail);
  }
  if (was_open) {
    common_->counters.sessions_open.fetch_sub(1, std::memory_order_relaxed);
    const bool stopping = stop_deadline_ns_ != 0;
    events_.ended(session.who(), stopping ? end_reason::closed_here : reason,
                  stopping ? "stopped" : detail);
  }
}

void ucx_engine::peer_says(ucx_session& session, const session_record& record) {
  switch (record.code) {
    case record_code::go:
      session.fail(end_reason::malformed, "a second go");
      break;
    case record_code::replaced:
      end_session(session, end_reason::replaced,
                  "a newer session with " + session.who().id.node + " took its place");
      break;
    case record_code::stopped:
      if (session.fin_deadline_ns == 0) {
        session.expect_last(record.bulk_sent, record.reserved_sent);
        session.fin_deadline_ns = clock_ns() + fin_ns;
        ++fins_expected_;
        needs_attention(session);
      }
      break;
    case record_code::closed:
    case record_code::malformed:
    case record_code::overflow:
    case record_code::failed:
      end_session(session, end_reason::closed_by_peer, explain(record.code));
      break;
    default:
      session.fail(end_reason::malformed, "unknown record");
      break;
  }
}

void ucx_engine::give_up(ucx_session& session) {
  const auto failure = *session.failure();
  // When a peer closes or dies, endpoint and bootstrap connection tell at about the same time, and
  // the latter knows why.
  if (failure.reason == end_reason::transport_error) {
    serve(session.link);
  }
  const auto found = links_.find(session.link);
  if (session.state == ucx_session::phase::opening && found != links_.end()) {
    abandon(*found->second, failure.detail);
  } else {
    end_session(session, failure.reason, failure.detail);
  }
}

}  // namespace eldr::messages
