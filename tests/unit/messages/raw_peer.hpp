#pragma once
/// A peer that knows the token and the protocol and keeps to neither: it opens a session as a node
/// does and then sends whatever a test wants.

#include <poll.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "messages/bootstrap.hpp"
#include "messages/socket.hpp"
#include "messages/ucx_session.hpp"
#include "messages/ucx_worker.hpp"
#include "messages/wire_header.hpp"

namespace eldr::messages::test {

using byte_vector = std::vector<std::byte>;

/// A plain TCP connection to a node's bootstrap port.
class raw_connection {
 public:
  explicit raw_connection(const std::string& address)
      : stream_(start_connecting(*resolve_numeric(address))) {
    pollfd wait{stream_.fd(), POLLOUT, 0};
    ::poll(&wait, 1, 5000);
  }
  void write(std::span<const std::byte> bytes) { stream_.write(bytes); }
  /// Waits until so many bytes came; false if the connection ended before.
  bool read(std::size_t count, byte_vector& result) {
    while (stream_.received().size() < count && !stream_.ended()) {
      pollfd wait{stream_.fd(), POLLIN, 0};
      if (::poll(&wait, 1, 5000) <= 0) {
        return false;
      }
      stream_.read_up_to(count);
    }
    if (stream_.received().size() < count) {
      return false;
    }
    result.assign(stream_.received().begin(),
                  stream_.received().begin() + static_cast<std::ptrdiff_t>(count));
    stream_.consume(count);
    return true;
  }
  /// True once the node has hung up; waits for it.
  bool hung_up() {
    byte_vector rest;
    while (read(1, rest)) {
    }
    return stream_.ended();
  }

 private:
  byte_stream stream_;
};

class raw_peer {
 public:
  raw_peer(const std::string& address, const std::string& token)
      : worker_(std::make_shared<ucx_worker>(ucx_settings{false, "lo"})), link_(address) {
    mine_.id.node = "raw";
    mine_.id.role = "decode";
    mine_.id.incarnation = 666;
    mine_.worker_address = worker_->address();
    mine_.nonce = 5;
    mine_.frame_bytes_max = 1u << 20;
    mine_.credit_frames = 256;
    link_.write(encode_greeting(preamble_kind::hello, mine_, token_proof(token).dialer));
    byte_vector first;
    byte_vector body;
    if (!link_.read(sizeof(preamble), first)) {
      throw std::runtime_error("no welcome");
    }
    const auto before = decode_preamble(first);
    link_.read(before.length, body);
    theirs_ = decode_greeting(before, body);
    connect();
  }
  ~raw_peer() {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    finish(ucp_ep_close_nbx(endpoint_, &params));
  }

  raw_connection& link() { return link_; }
  const greeting& theirs() const { return theirs_; }

  /// A header that the node would accept next, for a payload in one segment.
  encoded_header header(std::size_t payload_bytes, traffic cls = traffic::bulk) {
    encoded_header result;
    result.fixed.cls = cls;
    result.fixed.source = mine_.id.incarnation;
    result.fixed.destination = theirs_.id.incarnation;
    result.fixed.nonce = session_nonce(mine_.nonce, theirs_.nonce);
    result.fixed.sequence = ++sent_[static_cast<std::size_t>(cls)];
    result.fixed.segment_count = 1;
    result.segment_words[0] = static_cast<std::uint32_t>(payload_bytes / 8);
    return result;
  }
  /// What every dialer sends first.
  void say_first_frame() {
    auto first = header(0, traffic::reserved);
    first.fixed.kind = frame_kind::credit;
    first.fixed.segment_count = 0;
    send(first, {});
  }
  void send(const encoded_header& header, std::span<const std::byte> payload) {
    send_raw(frame_am_id, {static_cast<const std::byte*>(header.data()), header.bytes()}, payload);
  }
  void send_raw(unsigned am_id, std::span<const std::byte> header,
                std::span<const std::byte> payload, std::uint32_t flags = UCP_AM_SEND_FLAG_EAGER) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = flags;
    finish(ucp_am_send_nbx(endpoint_, am_id, header.data(), header.size(), payload.data(),
                           payload.size(), &params));
  }
  void progress() { ucp_worker_progress(worker_->get()); }

 private:
  static void on_error(void*, ucp_ep_h, ucs_status_t) {}

  void connect() {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(theirs_.worker_address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = on_error;
    ucx_check(ucp_ep_create(worker_->get(), &params, &endpoint_), "raw peer");
  }
  /// Progresses until UCX is done with a request, whatever came of it, for a while at most.
  void finish(ucs_status_ptr_t request) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS &&
           std::chrono::steady_clock::now() < deadline) {
      progress();
    }
    if (UCS_PTR_IS_PTR(request)) {
      ucp_request_free(request);
    }
  }

  std::shared_ptr<ucx_worker> worker_;
  raw_connection link_;
  greeting mine_;
  greeting theirs_;
  ucp_ep_h endpoint_ = nullptr;
  std::array<std::uint64_t, 2> sent_{};
};

}  // namespace eldr::messages::test
