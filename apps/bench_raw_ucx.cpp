#include "apps/bench_raw_ucx.hpp"

#include <poll.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <stdexcept>

#include "messages/socket.hpp"
#include "messages/ucx_transport.hpp"

namespace eldr::apps {
namespace {

constexpr unsigned message_id = 1;
constexpr std::size_t payload_bytes_max = 1u << 20;
constexpr int progress_turns = 16;
constexpr std::int64_t silence_ns_max = 10'000'000'000;
constexpr int sleep_ms = 100;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

raw_ucx::raw_ucx(bool shared_memory)
    : worker_(std::make_shared<messages::ucx_worker>(messages::ucx_settings{
          shared_memory, messages::device_of(messages::resolve("127.0.0.1:1"))})),
      payload_(payload_bytes_max) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = message_id;
  handler.cb = on_message;
  handler.arg = this;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  messages::ucx_check(ucp_worker_set_am_recv_handler(worker_->get(), &handler),
                      "cannot receive through UCX");
}

raw_ucx::~raw_ucx() {
  if (remote_key_ != nullptr) {
    ucp_rkey_destroy(remote_key_);
  }
  if (endpoint_ != nullptr) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    auto* request = ucp_ep_close_nbx(endpoint_, &params);
    if (UCS_PTR_IS_PTR(request)) {
      while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        ucp_worker_progress(worker_->get());
      }
      ucp_request_free(request);
    }
  }
  if (region_.handle != nullptr) {
    worker_->unmap(region_);
  }
}

void raw_ucx::connect(std::span<const std::byte> address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_error;
  params.err_handler.arg = this;
  messages::ucx_check(ucp_ep_create(worker_->get(), &params, &endpoint_), "cannot reach the peer");
}

std::span<std::byte> raw_ucx::allocate(std::size_t bytes) {
  region_ = worker_->allocate(bytes);
  return region_.memory;
}

void raw_ucx::read_from(std::uint64_t address, std::span<const std::byte> key) {
  remote_address_ = address;
  messages::ucx_check(ucp_ep_rkey_unpack(endpoint_, key.data(), &remote_key_),
                      "cannot read the peer's memory");
}

// --- callbacks ----------------------------------------------------------------------------------

ucs_status_t raw_ucx::on_message(void* self, const void*, std::size_t, void*, std::size_t length,
                                 const ucp_am_recv_param_t*) {
  auto& end = *static_cast<raw_ucx*>(self);
  ++end.received_;
  end.received_bytes_ = length;
  return UCS_OK;
}

void raw_ucx::on_sent(void* request, ucs_status_t status, void* self) {
  --static_cast<raw_ucx*>(self)->sends_in_flight_;
  static_cast<raw_ucx*>(self)->note(status);
  ucp_request_free(request);
}

void raw_ucx::on_got(void* request, ucs_status_t status, void* self) {
  --static_cast<raw_ucx*>(self)->gets_in_flight_;
  static_cast<raw_ucx*>(self)->note(status);
  ucp_request_free(request);
}

void raw_ucx::on_error(void* self, ucp_ep_h, ucs_status_t status) {
  static_cast<raw_ucx*>(self)->note(status);
}

void raw_ucx::note(ucs_status_t status) {
  if (status_ == UCS_OK) {
    status_ = status;
  }
}

void raw_ucx::check_status() const {
  messages::ucx_check(status_, "the benchmark's peer is gone");
}

// --- the loop -----------------------------------------------------------------------------------

bool raw_ucx::turn(int stop_fd) {
  int turns = 0;
  while (turns < progress_turns && ucp_worker_progress(worker_->get()) != 0) {
    ++turns;
  }
  turned_ns_ = now_ns();
  if (turns > 0) {
    active_ns_ = turned_ns_;
    return false;
  }
  if (turned_ns_ - active_ns_ < std::int64_t{messages::ucx_options{}.spin_us} * 1000) {
    ::sched_yield();
    return false;
  }
  if (ucp_worker_arm(worker_->get()) != UCS_OK) {
    ::sched_yield();  // There is something to progress, perhaps by UCX's own thread.
    return false;
  }
  std::array<pollfd, 2> watched{{{worker_->event_fd(), POLLIN, 0}, {stop_fd, POLLIN, 0}}};
  (void)poll(watched.data(), watched.size(), sleep_ms);
  return (watched[1].revents & POLLIN) != 0;
}

template <class Done>
void raw_ucx::wait_until(Done done) {
  const auto deadline = now_ns() + silence_ns_max;
  while (!done()) {
    turn(-1);
    check_status();
    if (turned_ns_ > deadline) {
      throw std::runtime_error("the benchmark's peer does not answer");
    }
  }
}

void raw_ucx::send(std::size_t bytes) {
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = on_sent;
  params.user_data = this;
  const auto request =
      ucp_am_send_nbx(endpoint_, message_id, nullptr, 0, payload_.data(), bytes, &params);
  if (UCS_PTR_IS_ERR(request)) {
    note(UCS_PTR_STATUS(request));
  } else if (request != nullptr) {
    ++sends_in_flight_;
  }
  check_status();
}

void raw_ucx::serve(int stop_fd) {
  std::size_t answered = 0;
  while (!turn(stop_fd) && status_ == UCS_OK) {
    for (; answered < received_; ++answered) {
      send(received_bytes_);
    }
  }
}

std::vector<double> raw_ucx::ping(std::size_t bytes, std::size_t count) {
  if (bytes > payload_.size()) {
    throw std::runtime_error("the message is larger than the benchmark's buffer");
  }
  std::vector<double> us;
  us.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto before = received_;
    const auto begin = now_ns();
    send(bytes);
    wait_until([&] { return received_ != before; });
    us.push_back(static_cast<double>(now_ns() - begin) / 1e3);
  }
  wait_until([&] { return sends_in_flight_ == 0; });
  return us;
}

double raw_ucx::get(std::span<const messages::get_range> ranges, std::uint32_t in_flight_max) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = on_got;
  params.user_data = this;
  const auto begin = now_ns();
  for (const auto& range : ranges) {
    wait_until([&] { return gets_in_flight_ < in_flight_max; });
    const auto request = ucp_get_nbx(endpoint_, range.local, range.length,
                                     remote_address_ + range.remote_offset, remote_key_, &params);
    if (UCS_PTR_IS_ERR(request)) {
      note(UCS_PTR_STATUS(request));
    } else if (request != nullptr) {
      ++gets_in_flight_;
    }
  }
  wait_until([&] { return gets_in_flight_ == 0; });
  return static_cast<double>(now_ns() - begin) / 1e9;
}

}  // namespace eldr::apps
