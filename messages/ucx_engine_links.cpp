#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "messages/ucx_engine.hpp"
#include "messages/ucx_engine_link.hpp"

namespace eldr::messages {

namespace {

constexpr std::int64_t ms = 1'000'000;
/// Connections, in either direction, that have no session yet.
constexpr std::uint32_t handshakes_max = 64;

std::uint64_t random_number() {
  std::random_device source;
  return (static_cast<std::uint64_t>(source()) << 32) | source();
}

/// A dial whose name has been resolved, or could not be.
struct resolved_dial final : command {
  void run(ucx_engine& engine, std::unique_ptr<command>) override {
    if (where) {
      engine.connect(address, *where);
    } else {
      engine.dial_failed(address, error);
    }
  }
  std::string address;
  std::optional<socket_address> where;
  std::string error;
};

}  // namespace

// --- dialling and accepting ---------------------------------------------------------------------

void ucx_engine::dial(const std::string& address) {
  try {
    if (const auto where = resolve_numeric(address)) {
      connect(address, *where);
      return;
    }
  } catch (const std::runtime_error& error) {
    dial_failed(address, error.what());
    return;
  }
  // The system's resolver may take seconds. Its thread outlives this engine if it must, hence it
  // owns all that it uses.
  std::thread([address, common = common_] {
    auto answer = std::make_unique<resolved_dial>();
    answer->address = address;
    try {
      answer->where = resolve(address);
    } catch (const std::runtime_error& error) {
      answer->error = error.what();
    }
    common->commands.push(std::move(answer));
  }).detach();
}

void ucx_engine::connect(const std::string& address, const socket_address& where) {
  if (stop_deadline_ns_ != 0 || handshakes_ >= handshakes_max) {
    dial_failed(address, stop_deadline_ns_ != 0 ? "this node stops"
                                                : "too many sessions are being opened at once");
    return;
  }
  try {
    auto& opened = add_link(start_connecting(where), true, address);
    opened.at = link::stage::connecting;
    watch(opened);
  } catch (const std::runtime_error& error) {
    dial_failed(address, "cannot reach " + address + ": " + error.what());
  }
}

void ucx_engine::dial_failed(const std::string& address, const std::string& error) {
  events_.dial_failed(address, error);
}

ucx_engine::link& ucx_engine::add_link(file_descriptor fd, bool dialer,
                                       const std::string& address) {
  const auto id = ++last_link_;
  auto added = std::make_unique<link>(id, std::move(fd), dialer, address);
  added->deadline_ns = clock_ns() + std::int64_t{options_.limits.dial_timeout_ms} * ms;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, added->stream.fd(), &event) != 0) {
    throw std::runtime_error(std::strerror(errno));
  }
  ++handshakes_;
  return *links_.emplace(id, std::move(added)).first->second;
}

void ucx_engine::watch(const link& which) {
  if (which.stream.ended()) {
    // An end of stream would keep the thread from sleeping; what is left to do has a deadline.
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, which.stream.fd(), nullptr);
    return;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  if (which.at == link::stage::connecting || which.stream.wants_to_write()) {
    event.events |= EPOLLOUT;
  }
  event.data.u64 = which.id;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, which.stream.fd(), &event);
}

void ucx_engine::accept_links() {
  while (auto fd = accept_from(listener_)) {
    make_room_for_handshake();
    try {
      add_link(std::move(fd), false, "");
    } catch (const std::runtime_error& error) {
      spdlog::warn("{}: cannot serve a bootstrap connection: {}", self_.node, error.what());
    }
  }
}

void ucx_engine::make_room_for_handshake() {
  if (handshakes_ < handshakes_max) {
    return;
  }
  // Whoever has waited longest without a word of its own makes room: connections that say nothing
  // cannot keep the node's peers out.
  for (const auto& [id, each] : links_) {
    if (!each->dialer && each->at == link::stage::preamble) {
      abandon(*each, "too many connections at once");
      return;
    }
  }
}

// --- one connection -----------------------------------------------------------------------------

void ucx_engine::serve(std::uint64_t link_id) {
  try {
    for (;;) {
      const auto found = links_.find(link_id);
      if (found == links_.end() || !advance(*found->second)) {
        break;
      }
    }
    if (const auto found = links_.find(link_id); found != links_.end()) {
      watch(*found->second);
    }
  } catch (const std::runtime_error& error) {
    if (const auto found = links_.find(link_id); found != links_.end()) {
      abandon(*found->second, error.what());
    }
  }
}

/// True if there may be more to do at once.
bool ucx_engine::advance(link& which) {
  if (which.at == link::stage::connecting) {
    return finish_connecting(which);
  }
  which.stream.flush();
  switch (which.at) {
    case link::stage::preamble:
      return read_preamble(which);
    case link::stage::greeting:
      return read_greeting(which);
    default:
      return read_record(which);
  }
}

bool ucx_engine::finish_connecting(link& which) {
  sockaddr_storage peer_address;
  socklen_t length = sizeof(peer_address);
  const int error = which.stream.connect_error();
  if (error != 0) {
    throw std::runtime_error(std::string(std::strerror(error)) +
                             "; check that the node runs there");
  }
  if (getpeername(which.stream.fd(), reinterpret_cast<sockaddr*>(&peer_address), &length) != 0) {
    return false;  // Not connected yet.
  }
  which.nonce_half = random_number();
  which.at = link::stage::preamble;
  which.stream.write(
      encode_greeting(preamble_kind::hello, own_greeting(which.nonce_half), proof_.dialer));
  return true;
}

bool ucx_engine::read_preamble(link& which) {
  which.stream.read_up_to(sizeof(preamble));
  if (which.stream.received().size() < sizeof(preamble)) {
    if (which.stream.ended()) {
      throw std::runtime_error("the connection was closed before a session opened");
    }
    return false;
  }
  const auto first = decode_preamble(which.stream.received());
  check_preamble(which, first);
  which.stream.consume(sizeof(preamble));
  which.first = first;
  which.at = link::stage::greeting;
  return true;
}

void ucx_engine::check_preamble(link& which, const preamble& first) {
  if (first.version != protocol_version) {
    if (!which.dialer) {
      which.stream.write(encode_refusal(preamble_kind::other_version));
    }
    throw std::runtime_error("it speaks protocol version " + std::to_string(first.version) +
                             " and this node " + std::to_string(protocol_version) +
                             "; run the same release on all nodes");
  }
  if (which.dialer && first.kind == preamble_kind::wrong_token) {
    throw std::runtime_error("it refused this node's token; both must read the same token file");
  }
  const auto wanted = which.dialer ? preamble_kind::welcome : preamble_kind::hello;
  const auto& proof = which.dialer ? proof_.listener : proof_.dialer;
  if (!equal_in_constant_time(first.token, proof)) {
    if (!which.dialer) {
      which.stream.write(encode_refusal(preamble_kind::wrong_token));
    }
    throw std::runtime_error(
        "it did not present the cluster's token; both must read the same token file");
  }
  if (first.kind != wanted || first.length > bootstrap_bytes_max) {
    throw std::runtime_error("its greeting is damaged");
  }
}

bool ucx_engine::read_greeting(link& which) {
  which.stream.read_up_to(which.first.length);
  if (which.stream.received().size() < which.first.length) {
    if (which.stream.ended()) {
      throw std::runtime_error("the connection was closed before a session opened");
    }
    return false;
  }
  auto heard = decode_greeting(which.first, which.stream.received());
  which.stream.consume(which.first.length);
  if (which.dialer) {
    hear_welcome(which, std::move(heard));
  } else {
    hear_hello(which, std::move(heard));
  }
  return true;
}

greeting ucx_engine::own_greeting(std::uint64_t nonce) const {
  return {self_,
          regions_,
          worker_address_,
          nonce,
          options_.limits.frame_bytes_max,
          options_.limits.credit_frames,
          ""};
}

void ucx_engine::hear_hello(link& which, greeting theirs) {
  const auto half = random_number();
  const auto nonce = session_nonce(theirs.nonce, half);
  auto answer = own_greeting(half);
  if (theirs.id.node == self_.node) {
    answer.refused = theirs.id.incarnation == self_.incarnation
                         ? "node " + self_.node + " was told to open a session with itself"
                         : "two nodes call themselves " + self_.node;
  } else {
    which.session = make_session(std::move(theirs), nonce, which.id, answer.refused);
  }
  which.stream.write(encode_greeting(preamble_kind::welcome, answer, proof_.listener));
  if (which.session == nullptr) {
    throw std::runtime_error(answer.refused);
  }
  which.at = link::stage::going;
}

void ucx_engine::hear_welcome(link& which, greeting theirs) {
  if (!theirs.refused.empty()) {
    throw std::runtime_error(theirs.refused);
  }
  std::string error;
  const auto nonce = session_nonce(which.nonce_half, theirs.nonce);
  which.session = make_session(std::move(theirs), nonce, which.id, error);
  if (which.session == nullptr) {
    throw std::runtime_error(error);
  }
  which.at = link::stage::going;
  which.session->connect();
  which.session->send_credits_owed();  // None yet: it is the first frame that counts.
}

bool ucx_engine::read_record(link& which) {
  which.stream.read_up_to(sizeof(session_record));
  auto& session = *which.session;
  if (which.stream.received().size() < sizeof(session_record)) {
    if (which.stream.ended() && which.at == link::stage::going) {
      throw std::runtime_error("the connection was closed before a session opened");
    }
    if (which.stream.ended() && session.fin_deadline_ns == 0) {
      end_session(session, end_reason::closed_by_peer,
                  "the connection was closed; the peer's process may have ended");
    }
    return false;
  }
  session_record record;
  std::memcpy(&record, which.stream.received().data(), sizeof(record));
  which.stream.consume(sizeof(record));
  if (record.magic != session_record::magic_value) {
    session.fail(end_reason::malformed, "not a session record");
    return false;
  }
  if (record.code == record_code::go && which.dialer && !std::exchange(which.went, true)) {
    if (which.at == link::stage::going) {  // Else a frame was faster.
      open(session);
    }
    return true;
  }
  if (which.at == link::stage::going) {
    throw std::runtime_error("the peer gave the session up before it opened");
  }
  peer_says(session, record);
  return true;
}

// --- letting go ---------------------------------------------------------------------------------

void ucx_engine::abandon(link& which, const std::string& error) {
  const auto id = which.id;
  const bool dialer = which.dialer;
  const auto address = which.address;
  if (which.session != nullptr) {
    end_session(*which.session, end_reason::closed_by_peer, error);  // Never opened: no event.
  }
  drop_link(id);
  if (dialer) {
    events_.dial_failed(address, "cannot open a session with " + address + ": " + error);
    return;
  }
  live_counters::add(common_->counters.handshakes_refused);
  if (log_.allow(clock_ns())) {
    spdlog::warn("{}: refused a bootstrap connection: {}", self_.node, error);
  }
}

void ucx_engine::drop_link(std::uint64_t link_id) {
  const auto found = links_.find(link_id);
  if (found == links_.end()) {
    return;
  }
  if (found->second->at != link::stage::live) {
    --handshakes_;
  }
  links_.erase(found);
}

void ucx_engine::tell(ucx_session& session, record_code code) {
  const auto found = links_.find(session.link);
  if (found == links_.end()) {
    return;
  }
  session_record record;
  record.code = code;
  record.bulk_sent = session.sent(traffic::bulk);
  record.reserved_sent = session.sent(traffic::reserved);
  found->second->stream.write(std::as_bytes(std::span(&record, 1)));
  if (code != record_code::go && code != record_code::stopped) {
    drop_link(session.link);  // Last words.
  }
}

}  // namespace eldr::messages
