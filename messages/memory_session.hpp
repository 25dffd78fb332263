#pragma once
/// State behind the in-memory network: processes, session ends and what travels between them.
/// Internal to the messages folder.

#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "messages/credit.hpp"
#include "messages/memory_network.hpp"
#include "messages/virtual_events.hpp"

namespace eldr::messages::memory {

struct session_end;
using end_ptr = std::shared_ptr<session_end>;

struct free_deleter {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
struct region {
  std::unique_ptr<std::byte, free_deleter> memory;
  std::size_t bytes = 0;
};

/// One life of a node.
struct process {
  enum class state : std::uint8_t { attached, running, stopped, dead };

  identity id;
  std::string token;
  state life = state::attached;
  bool frozen = false;
  bool corrupt_next_get = false;
  transport_events* events = nullptr;
  std::vector<region> regions;
  std::map<session_id, end_ptr> sessions;
  transport_counters counted;

  bool running() const noexcept { return life == state::running; }
  bool over() const noexcept { return life == state::stopped || life == state::dead; }
};
using process_ptr = std::shared_ptr<process>;

/// An attempt to open a session; settled once, by the welcome, a refusal or the timeout.
struct dial_attempt {
  process_ptr from;
  std::string address;
  bool settled = false;
};
using dial_ptr = std::shared_ptr<dial_attempt>;

struct message {
  outgoing_ptr content;
  std::size_t bytes = 0;
  traffic cls = traffic::bulk;
};

/// A message on the wire, with the credits that ride along.
struct in_flight {
  message what;
  std::uint32_t credits = 0;
  std::int64_t due_ns = 0;
};

/// Frames of one class on their way from one end to the other, in order.
struct lane {
  std::deque<in_flight> frames;
  std::int64_t last_due_ns = 0;
  bool scheduled = false;
};

/// A one-sided read under way. It reads a few ranges at a time, so that it can be torn.
struct read {
  std::weak_ptr<session_end> by;
  std::uint32_t region = 0;
  std::vector<get_range> ranges;
  std::size_t next = 0;
  bool corrupt = false;
  get_callback done;
};
using read_ptr = std::shared_ptr<read>;

/// One end of a session. `closing`: this end has been closed, its last event is on its way.
struct session_end {
  enum class phase : std::uint8_t { opening, open, closing, ended };

  session_end(process_ptr owner_, peer remote_, std::uint32_t window)
      : owner(std::move(owner_)), remote(std::move(remote_)), lent(window), owed(window) {}

  process_ptr owner;
  peer remote;
  std::weak_ptr<session_end> other;
  phase state = phase::opening;
  bool broken = false;       ///< Connection lost; nothing passes any more.
  bool fin_pending = false;  ///< The peer is to be told once all frames are delivered.
  dial_ptr dial;             ///< While opening, at the dialer.

  send_credits lent;
  owed_credits owed;
  std::deque<message> waiting;  ///< Bulk, for credits.
  std::size_t queued_bytes = 0;
  std::array<lane, 2> lanes;
  std::vector<read_ptr> reads;

  lane& lane_of(traffic cls) noexcept { return lanes[static_cast<std::size_t>(cls)]; }
  bool is_open() const noexcept { return state == phase::open; }
};

}  // namespace eldr::messages::memory

namespace eldr::messages {

/// The whole network. Every function that delivers an event runs from the driver; what a
/// transport's methods do is to schedule.
class memory_network::impl : public std::enable_shared_from_this<memory_network::impl> {
 public:
  using end_ptr = memory::end_ptr;
  using process_ptr = memory::process_ptr;

  explicit impl(network_options options) : options_(std::move(options)), events_(options_.seed) {}
  ~impl();

  virtual_events& events() noexcept { return events_; }
  const network_options& options() const noexcept { return options_; }
  std::uint64_t history_hash() const noexcept { return history_; }

  process_ptr attach(identity id, std::string token);
  process_ptr find(const std::string& node) const;
  void start(const process_ptr&, transport_events&);
  void stop(const process_ptr&);
  void kill(const process_ptr&);
  void set_frozen(const std::string& node, bool frozen);
  void set_partition(const std::string& a, const std::string& b, bool apart);
  void drop(const std::string& a, const std::string& b);

  // What the transports do.
  void dial(const process_ptr&, const std::string& address);
  send_result send(const process_ptr&, session_id, outgoing_ptr);
  void close(const process_ptr&, session_id, const std::string& detail);
  void get(const process_ptr&, session_id, std::uint32_t region, std::vector<get_range>,
           get_callback);

  /// A handler has let go of a bulk frame that `receiver` delivered.
  void frame_released(const end_ptr& receiver);

  /// False while a callback runs.
  bool may_stop() const noexcept { return !in_callback_; }

 private:
  // Opening and ending sessions (memory_network.cpp).
  void connect(const memory::dial_ptr&);
  void accept(const memory::dial_ptr&, const process_ptr& listener);
  void welcome(const memory::dial_ptr&, const end_ptr& dialer_end);
  /// False if the attempt was decided before.
  bool settle(const memory::dial_ptr&);
  void dial_fails(const memory::dial_ptr&, const std::string& error);
  void refuse(const memory::dial_ptr&, const std::string& error);
  void open(const end_ptr&);
  void replace_older(const end_ptr& newer);
  /// Ends it here with a last event, now. Only from the driver.
  void end_now(const end_ptr&, end_reason, const std::string& detail);
  void close_end(const end_ptr&, end_reason, const std::string& detail);
  /// What reaches an end from afar or by detection.
  void lose(const end_ptr&, end_reason, const std::string& detail);
  void tell_peer(const end_ptr&, end_reason, const std::string& detail);
  void break_connection(const end_ptr&);
  process_ptr listener_at(const std::string& address) const;

  // Frames, credits and reads (memory_session.cpp).
  end_ptr find_open(const process_ptr&, session_id) const;
  bool over_bounds(const memory::session_end&, const memory::message&) const;
  void pump(const end_ptr&);
  void put_on_wire(const end_ptr& from, memory::message);
  void schedule_lane(const end_ptr& from, traffic);
  void deliver(const end_ptr& from, traffic);
  void hand_over(const end_ptr& to, memory::message);
  void grant(const end_ptr& to, std::uint32_t credits);
  void send_credits_owed(const end_ptr& from);
  void flush(const end_ptr&);
  void tell_fin(const end_ptr&);
  void schedule_read(const memory::read_ptr&, const end_ptr& by, const end_ptr& target);
  void step_read(const memory::read_ptr&);

  virtual_events::gate at(process_ptr) const;
  virtual_events::gate between(process_ptr at, process_ptr other, bool needs_other = false) const;
  std::int64_t delay() { return events_.draw(options_.delay_min_ns, options_.delay_max_ns); }
  std::int64_t detection() { return events_.draw(options_.detect_min_ns, options_.detect_max_ns); }
  bool apart(const std::string& a, const std::string& b) const;
  template <typename F>
  void call(F&& handler) {
    struct flag {
      bool& set;
      bool before = std::exchange(set, true);
      ~flag() { set = before; }
    } const guard{in_callback_};
    handler();
  }
  void record(std::uint64_t kind, const memory::process&, std::uint64_t value);

  network_options options_;
  virtual_events events_;
  std::map<std::string, process_ptr> processes_;  // By node name; the newest life only.
  std::set<std::pair<std::string, std::string>> partitions_;
  session_id sessions_ = 0;
  std::uint64_t history_ = 0;
  bool in_callback_ = false;
};

}  // namespace eldr::messages
