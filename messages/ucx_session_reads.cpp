/// One-sided reads of a session: by UCX where it can, else by asking the peer's transport.

#include <algorithm>
#include <cstring>
#include <utility>

#include "messages/get_plan.hpp"
#include "messages/ucx_session.hpp"

namespace eldr::messages {

namespace {

/// Larger reads are cut. A piece that the peer sends fits a segment of the connection, so that it
/// is copied once, from where it was received to where it belongs.
constexpr std::size_t direct_piece_bytes_max = 1u << 20;
constexpr std::size_t asked_piece_bytes_max = 128u << 10;
/// Pieces of a session that the peer may be asked for at once, over all its reads.
constexpr std::size_t awaited_max = 256;

struct posted_read final : posted {
  read_header header;
};

}  // namespace

// --- the reader ---------------------------------------------------------------------------------

void ucx_session::start_get(std::unique_ptr<get_item> item) {
  auto status = get_status::ok;
  if (state != phase::open || failure_ || item->region >= who_.regions.size()) {
    status = get_status::no_session;
  } else if (!within(item->pieces, who_.regions[item->region].bytes)) {
    status = get_status::out_of_range;
  } else {
    const bool direct = keys_[item->region] != nullptr;
    item->pieces = plan_get(item->pieces, direct ? direct_piece_bytes_max : asked_piece_bytes_max);
  }
  if (status != get_status::ok || item->pieces.empty()) {
    item->done(status);
    return;
  }
  item->owner = this;
  gets_.push_back(std::move(item));
  issue(*gets_.back());
  attend();
}

void ucx_session::issue(get_item& item) {
  const bool direct = keys_[item.region] != nullptr;
  while (!failure_ && item.next_piece < item.pieces.size() &&
         item.in_flight < setup_.limits.gets_in_flight && awaited_.size() < awaited_max) {
    const auto& piece = item.pieces[item.next_piece++];
    item.bytes += piece.length;
    if (direct) {
      read_directly(item, piece);
    } else {
      ask_for(item, piece);
    }
  }
}

void ucx_session::read_directly(get_item& item, const get_range& piece) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = on_got;
  params.user_data = &item;
  const auto request = ucp_get_nbx(endpoint_, piece.local, piece.length,
                                   setup_.theirs.regions[item.region].address + piece.remote_offset,
                                   keys_[item.region], &params);
  if (UCS_PTR_IS_ERR(request)) {
    fail(end_reason::transport_error, ucs_status_string(UCS_PTR_STATUS(request)));
  } else if (request != nullptr) {
    ++item.in_flight;
  }
}

void ucx_session::on_got(void* request, ucs_status_t status, void* user_data) {
  auto& item = *static_cast<get_item*>(user_data);
  auto& self = *item.owner;
  --item.in_flight;
  if (status != UCS_OK) {
    self.fail(end_reason::transport_error, ucs_status_string(status));
  }
  self.attend();
  ucp_request_free(request);
}

void ucx_session::ask_for(get_item& item, const get_range& piece) {
  ++item.in_flight;
  awaited_.push_back({++tickets_, &item, piece});
  read_header header;
  header.kind = read_kind::request;
  header.ticket = tickets_;
  header.region = item.region;
  header.offset = piece.remote_offset;
  header.length = static_cast<std::uint32_t>(piece.length);
  post_read(header, {});
}

void ucx_session::take_data(const read_header& header, std::span<const std::byte> payload) {
  const auto found = std::ranges::find(awaited_, header.ticket, &awaited_piece::ticket);
  if (found == awaited_.end() || found->range.length != payload.size()) {
    malformed("bytes that were not asked for");
    return;
  }
  std::memcpy(found->range.local, payload.data(), payload.size());
  --found->item->in_flight;
  *found = awaited_.back();
  awaited_.pop_back();
  attend();
}

void ucx_session::advance_gets() {
  std::vector<std::unique_ptr<get_item>> finished;
  for (auto& item : gets_) {
    issue(*item);
    if (!failure_ && item->in_flight == 0 && item->next_piece == item->pieces.size()) {
      finished.push_back(std::move(item));
    }
  }
  std::erase(gets_, nullptr);
  for (const auto& item : finished) {
    live_counters::add(counters_.get_bytes, item->bytes);
    item->done(get_status::ok);
  }
}

// --- both ends ----------------------------------------------------------------------------------

void ucx_session::receive_read(std::span<const std::byte> bytes,
                               std::span<const std::byte> payload) {
  read_header header;
  const char* error = decode_read(bytes, payload.size(), header);
  if (error == nullptr &&
      (header.source != who_.id.incarnation || header.destination != setup_.own_incarnation)) {
    error = "read of another incarnation";
  }
  if (error != nullptr) {
    malformed(error);
  } else if (header.kind == read_kind::request) {
    answer_read(header);
  } else {
    take_data(header, payload);
  }
}

void ucx_session::answer_read(const read_header& asked) {
  const auto& regions = setup_.own_regions;
  const get_range range{asked.offset, nullptr, asked.length};
  if (asked.region >= regions.size() || !within({range}, regions[asked.region].size())) {
    malformed("read outside this node's memory");
    return;
  }
  if (asked_.size() + answers_in_flight_ >= awaited_max) {
    malformed("more reads than agreed");
    return;
  }
  asked_.push_back(asked);  // To be answered outside of UCX's callback.
  attend();
}

void ucx_session::answer_reads() {
  for (auto& answer : std::exchange(asked_, {})) {
    if (!failure_) {
      answer.kind = read_kind::data;
      post_read(answer, setup_.own_regions[answer.region].subspan(answer.offset, answer.length));
    }
  }
}

void ucx_session::post_read(const read_header& header, std::span<const std::byte> payload) {
  auto item = std::make_unique<posted_read>();
  item->header = header;
  item->answers_read = header.kind == read_kind::data;
  item->header.source = setup_.own_incarnation;
  item->header.destination = who_.id.incarnation;
  item->header.nonce = setup_.nonce;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = on_sent;
  params.user_data = static_cast<posted*>(item.get());
  const auto request = ucp_am_send_nbx(endpoint_, read_am_id, &item->header, sizeof(item->header),
                                       payload.data(), payload.size(), &params);
  track(request, std::move(item));
}

}  // namespace eldr::messages
