#pragma once
/// What the progress thread does: it owns the UCX worker, the sessions and the bootstrap
/// connections. Everything here runs on it, except where said.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/bootstrap.hpp"
#include "messages/inbox.hpp"
#include "messages/session_table.hpp"
#include "messages/socket.hpp"
#include "messages/ucx_session.hpp"
#include "messages/ucx_transport.hpp"
#include "messages/ucx_worker.hpp"

namespace eldr::messages {

/// Monotonic.
std::int64_t clock_ns() noexcept;

/// Lets a few log lines a second through: hostile peers cannot fill the disk.
class log_limit {
 public:
  bool allow(std::int64_t now_ns) noexcept;

 private:
  static constexpr std::uint32_t lines_per_second = 10;
  std::int64_t second_ = 0;
  std::uint32_t lines_ = 0;
};

class ucx_engine final : public session_watcher {
 public:
  /// Shared with the threads that send.
  struct shared {
    session_table table;
    live_counters counters;
    inbox commands;
  };

  struct setup {
    identity self;
    ucx_options options;
    std::vector<region_descriptor> regions;
    file_descriptor listener;  ///< None for a node that does not listen.
    std::shared_ptr<ucx_worker> worker;
    std::shared_ptr<shared> common;
    transport_events* events = nullptr;
  };

  /// Throws std::runtime_error. Not yet on the progress thread.
  explicit ucx_engine(setup);
  ~ucx_engine();
  ucx_engine(const ucx_engine&) = delete;
  ucx_engine& operator=(const ucx_engine&) = delete;

  /// The thread's whole life: returns after request_stop() was run.
  void run();

  // What commands and sessions ask for.
  void needs_attention(ucx_session&) override;
  void submit(std::unique_ptr<send_item>);
  void start_get(std::unique_ptr<get_item>);
  void dial(const std::string& address);
  /// Goes on with a dial once its name is resolved.
  void connect(const std::string& address, const socket_address& where);
  void dial_failed(const std::string& address, const std::string& error);
  void end(session_id, end_reason, const std::string& detail);
  void request_stop();

 private:
  struct link;
  using session_ptr = std::unique_ptr<ucx_session>;

  // The loop (ucx_engine.cpp).
  bool turn();
  bool run_commands();
  bool progress_ucx();
  bool attend_sessions();
  void attend(ucx_session&);
  bool sweep_ended();
  void tend_deadlines(std::int64_t now_ns);
  void poll_sockets(int timeout_ms);
  void sleep(std::int64_t now_ns);
  int sleep_ms(std::int64_t now_ns) const;
  void stop_sessions(std::int64_t now_ns);
  void stayed_active() noexcept { active_ns_ = clock_ns(); }

  // Sessions (ucx_engine_sessions.cpp).
  void handle(unsigned am_id, ucp_am_recv_callback_t, unsigned flags);
  static ucs_status_t on_frame(void* engine, const void* header, std::size_t header_length,
                               void* data, std::size_t length, const ucp_am_recv_param_t*);
  static ucs_status_t on_read(void* engine, const void* header, std::size_t header_length,
                              void* data, std::size_t length, const ucp_am_recv_param_t*);
  /// The session that a message belongs to, unless it is over or the message unfit.
  ucx_session* addressee(std::span<const std::byte> header, const ucp_am_recv_param_t&);
  ucs_status_t receive(ucx_session&, std::span<const std::byte> header, void* data,
                       std::size_t length);
  void deliver(ucx_session&, frame_ptr);
  void released(const ucx_frame&);
  ucx_session* find(session_id) noexcept;
  /// Null if there is no room; `error` then says so.
  ucx_session* make_session(greeting theirs, std::uint64_t nonce, std::uint64_t link_id,
                            std::string& error);
  /// The first frame has come.
  void finish_opening(ucx_session&);
  void open(ucx_session&);
  void replace_older(const ucx_session&);
  void end_session(ucx_session&, end_reason, const std::string& detail);
  void peer_says(ucx_session&, const session_record&);
  /// Ends a session that has a failure().
  void give_up(ucx_session&);

  // Bootstrap connections (ucx_engine_links.cpp).
  greeting own_greeting(std::uint64_t nonce) const;
  link& add_link(file_descriptor, bool dialer, const std::string& address);
  void accept_links();
  void serve(std::uint64_t link_id);
  bool advance(link&);
  bool finish_connecting(link&);
  bool read_preamble(link&);
  bool read_greeting(link&);
  bool read_record(link&);
  void check_preamble(link&, const preamble&);
  void hear_hello(link&, greeting);
  void hear_welcome(link&, greeting);
  /// Gives up a connection that has no open session.
  void abandon(link&, const std::string& error);
  void drop_link(std::uint64_t link_id);
  void tell(ucx_session&, record_code);
  void watch(const link&);
  void make_room_for_handshake();

  identity self_;
  ucx_options options_;
  token_proof proof_;
  std::vector<region_descriptor> regions_;
  std::vector<std::span<std::byte>> memory_;  // Of the regions.
  file_descriptor listener_;
  std::shared_ptr<ucx_worker> worker_;
  std::shared_ptr<shared> common_;
  transport_events& events_;
  std::vector<std::byte> worker_address_;

  file_descriptor epoll_;
  std::map<std::uint64_t, std::unique_ptr<link>> links_;
  std::uint64_t last_link_ = 2;  // Numbers up to 2 stand for the other descriptors.
  std::uint32_t handshakes_ = 0;
  std::array<ucx_session*, sessions_max> by_slot_{};
  std::unordered_map<std::uint64_t, session_ptr> by_nonce_;
  std::vector<session_ptr> ended_;
  std::vector<ucx_session*> attention_;
  log_limit log_;

  std::int64_t active_ns_ = 0;
  std::int64_t sockets_ns_ = 0;
  std::uint32_t fins_expected_ = 0;
  std::int64_t stop_deadline_ns_ = 0;  // 0: not stopping.
};

}  // namespace eldr::messages
