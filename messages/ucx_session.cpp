#include "messages/ucx_session.hpp"

#include <kj/exception.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace eldr::messages {

namespace {

/// Networks that read remote memory in hardware, as UCX_TLS names them.
bool user_chose_rdma() {
  const char* tls = std::getenv("UCX_TLS");
  const std::string_view chosen = tls == nullptr ? "" : tls;
  return chosen.find("rc") != chosen.npos || chosen.find("dc") != chosen.npos ||
         chosen.find("ib") != chosen.npos || chosen.find("all") != chosen.npos;
}

/// The key of a region that can be read without the peer's help. Over tcp UCX only emulates reads,
/// and when an endpoint closes while the peer's emulation has an answer pending, UCX 1.13 crashes
/// the peer; an address outside its memory does too. There, reads are messages of our own.
ucp_rkey_h direct_key(ucp_ep_h endpoint, const region_descriptor& region) {
  ucp_rkey_h key = nullptr;
  if (region.key.empty() || ucp_ep_rkey_unpack(endpoint, region.key.data(), &key) != UCS_OK) {
    return nullptr;
  }
  void* mapped = nullptr;
  if (ucp_rkey_ptr(key, region.address, &mapped) == UCS_OK || user_chose_rdma()) {
    return key;
  }
  ucp_rkey_destroy(key);
  return nullptr;
}

}  // namespace

transport_counters live_counters::snapshot() const noexcept {
  const auto of = [](const count& one) { return one.load(std::memory_order_relaxed); };
  return {of(sessions_open), of(sessions_total),     of(frames_sent),   of(frames_received),
          of(bytes_sent),    of(bytes_received),     of(credit_stalls), of(late_frames_dropped),
          of(malformed),     of(handshakes_refused), of(gets),          of(get_bytes),
          of(sleeps)};
}

ucx_session::ucx_session(ucx_worker& worker, live_counters& counters, session_watcher& watcher,
                         setup with)
    : worker_(worker),
      counters_(counters),
      watcher_(watcher),
      setup_(std::move(with)),
      lent_(setup_.limits.credit_frames),
      owed_(setup_.limits.credit_frames) {
  who_.session = setup_.id;
  who_.id = setup_.theirs.id;
  for (const auto& region : setup_.theirs.regions) {
    who_.regions.push_back({region.id, region.bytes});
  }
}

void ucx_session::connect() {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(setup_.theirs.worker_address.data());
  // Without peer error handling a read from a stopped peer can overwrite memory much later.
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_error;
  params.err_handler.arg = this;
  ucx_check(ucp_ep_create(worker_.get(), &params, &endpoint_),
            ("cannot reach " + who_.id.node +
             " through UCX; both nodes must be on networks that reach each other")
                .c_str());
  for (const auto& region : setup_.theirs.regions) {
    keys_.push_back(direct_key(endpoint_, region));
  }
}

ucx_session::~ucx_session() {
  for (auto* key : keys_) {
    if (key != nullptr) {
      ucp_rkey_destroy(key);
    }
  }
}

void ucx_session::attend() {
  if (state != phase::ended) {
    watcher_.needs_attention(*this);
  }
}

void ucx_session::fail(end_reason reason, std::string detail) {
  if (state != phase::ended && !failure_) {
    failure_ = {reason, std::move(detail)};
    attend();
  }
}

void ucx_session::on_error(void* session, ucp_ep_h, ucs_status_t status) {
  static_cast<ucx_session*>(session)->fail(end_reason::transport_error, ucs_status_string(status));
}

// --- sending ------------------------------------------------------------------------------------

void ucx_session::submit(std::unique_ptr<send_item> item) {
  if (state == phase::ended || failure_) {
    return;
  }
  if (item->cls == traffic::reserved) {
    post(std::move(item));
    return;
  }
  if (!waiting_.empty() || lent_.empty()) {
    live_counters::add(counters_.credit_stalls);
    waiting_.push_back(std::move(item));
    return;
  }
  lent_.take();
  post(std::move(item));
}

void ucx_session::pump() {
  while (!waiting_.empty() && !lent_.empty() && !failure_) {
    auto item = std::move(waiting_.front());
    waiting_.pop_front();
    lent_.take();
    post(std::move(item));
  }
}

void ucx_session::post(std::unique_ptr<send_item> item) {
  auto& fixed = item->header.fixed;
  fixed.kind = item->content ? frame_kind::message : frame_kind::credit;
  fixed.cls = item->cls;
  fixed.source = setup_.own_incarnation;
  fixed.destination = who_.id.incarnation;
  fixed.nonce = setup_.nonce;
  fixed.sequence = ++sent_[index(item->cls)];
  fixed.credits = owed_.take();
  if (item->content) {
    live_counters::add(counters_.frames_sent);
    live_counters::add(counters_.bytes_sent, item->bytes);
  }
  const auto request = post_parts(*item);
  track(request, std::move(item));
}

void ucx_session::track(ucs_status_ptr_t request, posted_ptr item) {
  if (UCS_PTR_IS_ERR(request)) {
    fail(end_reason::transport_error, ucs_status_string(UCS_PTR_STATUS(request)));
  } else if (request != nullptr) {
    ++sends_in_flight_;
    answers_in_flight_ += item->answers_read ? 1 : 0;
    item->owner = this;
    (void)item.release();  // on_sent() takes it back.
  }
}

ucs_status_ptr_t ucx_session::post_parts(send_item& item) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;  // Rendezvous would not keep order.
  params.cb.send = on_sent;
  params.user_data = static_cast<posted*>(&item);
  params.datatype = ucp_dt_make_contig(1);
  const void* buffer = nullptr;
  std::size_t count = 0;
  if (item.content) {
    const auto segments = item.content->arena().getSegmentsForOutput();
    item.header.fixed.segment_count = static_cast<std::uint16_t>(segments.size());
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const auto bytes = segments[i].asBytes();
      item.header.segment_words[i] = static_cast<std::uint32_t>(segments[i].size());
      item.parts[i] = {const_cast<kj::byte*>(bytes.begin()), bytes.size()};
    }
    buffer = item.parts[0].buffer;
    count = item.parts[0].length;
    if (segments.size() > 1) {
      params.datatype = UCP_DATATYPE_IOV;
      buffer = item.parts.data();
      count = segments.size();
    }
  }
  return ucp_am_send_nbx(endpoint_, frame_am_id, item.header.data(), item.header.bytes(), buffer,
                         count, &params);
}

void ucx_session::on_sent(void* request, ucs_status_t status, void* user_data) {
  const posted_ptr item(static_cast<posted*>(user_data));
  auto& self = *item->owner;
  --self.sends_in_flight_;
  self.answers_in_flight_ -= item->answers_read ? 1 : 0;
  if (status != UCS_OK) {
    self.fail(end_reason::transport_error, ucs_status_string(status));
  }
  ucp_request_free(request);
}

void ucx_session::send_credits_owed() {
  auto item = std::make_unique<send_item>();
  item->keeps_awake = false;
  post(std::move(item));
}

// --- receiving ----------------------------------------------------------------------------------

const char* ucx_session::check(const frame_header& fixed) const noexcept {
  if (fixed.source != who_.id.incarnation || fixed.destination != setup_.own_incarnation) {
    return "frame of another incarnation";
  }
  if (fixed.sequence != received_[index(fixed.cls)] + 1) {
    return "frame out of sequence";
  }
  // Credits of a window are at the peer, on the way, or here as frames held: what exceeds the
  // window was sent without credit.
  const auto most = fixed.cls == traffic::bulk ? setup_.limits.credit_frames
                                               : 4 * setup_.limits.reserved_frames_max;
  if (fixed.kind == frame_kind::message && held_[index(fixed.cls)] >= most) {
    return "more frames than agreed";
  }
  return nullptr;
}

frame_ptr ucx_session::receive(std::span<const std::byte> header, void* data, std::size_t length) {
  decoded_frame decoded;
  const std::span payload(static_cast<const std::byte*>(data), length);
  const char* error = decode_frame(header, payload, setup_.limits.frame_bytes_max, decoded);
  error = error == nullptr ? check(decoded.fixed) : error;
  if (error == nullptr && !lent_.grant(decoded.fixed.credits)) {
    error = "more credits than were lent";
  }
  if (error != nullptr) {
    malformed(error);
    return nullptr;
  }
  const auto cls = decoded.fixed.cls;
  ++received_[index(cls)];
  if (state == phase::opening || fin_deadline_ns != 0 ||
      (decoded.fixed.credits > 0 && !waiting_.empty())) {
    attend();
  }
  if (decoded.fixed.kind == frame_kind::credit) {
    return nullptr;
  }
  try {
    auto frame = std::make_unique<ucx_frame>(worker_.shared_from_this(), data, length, id(), cls,
                                             decoded.parts());
    live_counters::add(counters_.frames_received);
    live_counters::add(counters_.bytes_received, length);
    ++held_[index(cls)];
    return worker_.lend(std::move(frame));
  } catch (const kj::Exception& exception) {
    malformed(exception.getDescription().cStr());
    return nullptr;
  }
}

void ucx_session::released(traffic cls) {
  --held_[index(cls)];
  if (cls == traffic::bulk) {
    owed_.add();
    if (owed_.due() && !failure_) {
      send_credits_owed();
    }
  }
}

// --- the end ------------------------------------------------------------------------------------

void ucx_session::shut(std::int64_t now_ns) {
  state = phase::ended;
  waiting_.clear();
  for (const auto& piece : std::exchange(awaited_, {})) {
    --piece.item->in_flight;  // Nobody but take_data() would write to its destination.
  }
  close_due_ns_ = now_ns + close_delay_ns;
}

void ucx_session::close_endpoint() {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  closing_ = ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &params);
}

bool ucx_session::settle(std::int64_t now_ns) {
  if (endpoint_ != nullptr) {
    if (now_ns < close_due_ns_) {
      return false;
    }
    close_endpoint();
  }
  if (UCS_PTR_IS_PTR(closing_) && ucp_request_check_status(closing_) != UCS_INPROGRESS) {
    ucp_request_free(std::exchange(closing_, nullptr));
  }
  std::vector<std::unique_ptr<get_item>> answered;
  for (auto& item : gets_) {
    if (item->in_flight == 0) {
      answered.push_back(std::move(item));
    }
  }
  std::erase(gets_, nullptr);
  for (const auto& item : answered) {
    item->done(get_status::failed);
  }
  return gets_.empty() && sends_in_flight_ == 0 && !UCS_PTR_IS_PTR(closing_);
}

}  // namespace eldr::messages
