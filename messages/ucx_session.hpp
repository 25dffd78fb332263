#pragma once
/// One end of a session over UCX: endpoint, order, credits, one-sided reads. Progress thread only.

#include <ucp/api/ucp.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messages/bootstrap.hpp"
#include "messages/credit.hpp"
#include "messages/inbox.hpp"
#include "messages/session_table.hpp"
#include "messages/ucx_worker.hpp"
#include "messages/wire_header.hpp"

namespace eldr::messages {

/// Written by the progress thread and by senders, read by anybody.
struct live_counters {
  using count = std::atomic<std::uint64_t>;
  count sessions_open{0}, sessions_total{0}, frames_sent{0}, frames_received{0}, bytes_sent{0},
      bytes_received{0}, credit_stalls{0}, late_frames_dropped{0}, malformed{0},
      handshakes_refused{0}, gets{0}, get_bytes{0}, sleeps{0};

  static void add(count& to, std::uint64_t amount = 1) noexcept {
    to.fetch_add(amount, std::memory_order_relaxed);
  }
  transport_counters snapshot() const noexcept;
};

/// The active messages that carry frames, and reads where UCX cannot do them one-sided.
inline constexpr unsigned frame_am_id = 5;
inline constexpr unsigned read_am_id = 6;

class ucx_session;

/// What UCX has been given to send; it reads from it until on_sent().
struct posted {
  posted() = default;
  posted(const posted&) = delete;
  posted& operator=(const posted&) = delete;
  virtual ~posted() = default;
  ucx_session* owner = nullptr;
  bool answers_read = false;
};
using posted_ptr = std::unique_ptr<posted>;

/// A message on its way to the wire; a credit frame if it has no content.
struct send_item final : command, posted {
  void run(ucx_engine&, std::unique_ptr<command> self) override;

  session_id session = 0;
  outgoing_ptr content;
  std::size_t bytes = 0;
  traffic cls = traffic::reserved;
  bool keeps_awake = true;  ///< Heartbeats start no busy waiting.
  queue_share share;

  // While UCX has it.
  encoded_header header;
  std::array<ucp_dt_iov_t, segments_max> parts;
};

/// A one-sided read under way.
struct get_item final : command {
  void run(ucx_engine&, std::unique_ptr<command> self) override;

  session_id session = 0;
  std::uint32_t region = 0;
  std::vector<get_range> pieces;
  get_callback done;

  ucx_session* owner = nullptr;
  std::size_t next_piece = 0;
  std::uint32_t in_flight = 0;
  std::uint64_t bytes = 0;
};

/// A piece of a read that the peer has been asked for.
struct awaited_piece {
  std::uint64_t ticket = 0;
  get_item* item = nullptr;
  get_range range;
};

/// What a session tells the engine, in the midst of UCX's callbacks: deal with it afterwards.
class session_watcher {
 public:
  virtual void needs_attention(ucx_session&) = 0;

 protected:
  ~session_watcher() = default;
};

class ucx_session {
 public:
  enum class phase : std::uint8_t { opening, open, ended };
  struct setup {
    session_id id = 0;
    std::uint64_t nonce = 0;
    std::uint64_t own_incarnation = 0;
    greeting theirs;
    transport_limits limits;  ///< As agreed by both ends.
    std::span<const std::span<std::byte>> own_regions;
  };

  ucx_session(ucx_worker&, live_counters&, session_watcher&, setup);
  ~ucx_session();
  ucx_session(const ucx_session&) = delete;
  ucx_session& operator=(const ucx_session&) = delete;

  /// Makes the endpoint. The dialer does so first and sends a frame; the listener does so when it
  /// has heard() that: UCX 1.13 can use freed memory when both connect at the same moment.
  /// Throws std::runtime_error if UCX cannot reach the peer.
  void connect();
  bool heard() const noexcept { return received_ != std::array<std::uint64_t, 2>{}; }
  /// A frame for its own sake; it carries what credits are owed.
  void send_credits_owed();

  const peer& who() const noexcept { return who_; }
  session_id id() const noexcept { return who_.session; }
  std::uint64_t nonce() const noexcept { return setup_.nonce; }

  phase state = phase::opening;
  std::uint64_t link = 0;            ///< Its bootstrap connection.
  std::vector<frame_ptr> early;      ///< Arrived while opening.
  bool attention = false;            ///< Is in the engine's list.
  bool told_stop = false;            ///< The peer knows that this node stops.
  std::int64_t fin_deadline_ns = 0;  ///< The peer stops; when to wait no longer. 0: it does not.

  // Sending.
  void submit(std::unique_ptr<send_item>);
  /// Sends what credits allow.
  void pump();
  bool idle() const noexcept { return waiting_.empty() && sends_in_flight_ == 0; }
  std::uint64_t sent(traffic cls) const noexcept { return sent_[index(cls)]; }

  // Receiving.
  /// The frame to deliver, if there is one. A fault in the bytes is put down as failure().
  /// `data` is kept by the frame.
  frame_ptr receive(std::span<const std::byte> header, void* data, std::size_t length);
  /// A handler let go of a frame.
  void released(traffic cls);
  /// The peer sends nothing beyond these any more.
  void expect_last(std::uint64_t bulk, std::uint64_t reserved) noexcept {
    last_ = {bulk, reserved};
  }
  bool received_last() const noexcept { return received_ == last_; }

  // One-sided reads (ucx_session_reads.cpp).
  /// A message of a read by either end. A fault in the bytes is put down as failure().
  void receive_read(std::span<const std::byte> header, std::span<const std::byte> payload);
  void start_get(std::unique_ptr<get_item>);
  /// Issues further pieces and answers what is done.
  void advance_gets();
  /// Sends the peer what it asked for.
  void answer_reads();

  struct failed {
    end_reason reason;
    std::string detail;
  };
  /// Puts down why the session must end; the first reason counts.
  void fail(end_reason, std::string detail);
  const std::optional<failed>& failure() const noexcept { return failure_; }

  /// Nothing is sent or received from now on. The endpoint is closed a little later, by settle().
  void shut(std::int64_t now_ns);
  /// After shut(): answers the reads that UCX has let go of; true when nothing is left in UCX.
  bool settle(std::int64_t now_ns);

 private:
  void close_endpoint();
  static std::size_t index(traffic cls) noexcept { return static_cast<std::size_t>(cls); }
  static void on_sent(void* request, ucs_status_t, void* item);
  static void on_got(void* request, ucs_status_t, void* item);
  /// What became of something handed to UCX; `item` stays alive until then.
  void track(ucs_status_ptr_t request, posted_ptr item);
  static void on_error(void* session, ucp_ep_h, ucs_status_t);

  void post(std::unique_ptr<send_item>);
  ucs_status_ptr_t post_parts(send_item&);
  const char* check(const frame_header&) const noexcept;
  void issue(get_item&);
  void read_directly(get_item&, const get_range&);
  void ask_for(get_item&, const get_range&);
  void answer_read(const read_header&);
  void take_data(const read_header&, std::span<const std::byte> payload);
  void post_read(const read_header&, std::span<const std::byte> payload);
  void attend();
  void malformed(const char* what) { fail(end_reason::malformed, what); }

  ucx_worker& worker_;
  live_counters& counters_;
  session_watcher& watcher_;
  setup setup_;
  peer who_;
  ucp_ep_h endpoint_ = nullptr;
  /// A forced close while UCX 1.13 still answers a peer's read, or is about to note that the
  /// connection broke, leaves an event behind that touches freed memory. By then both are over.
  static constexpr std::int64_t close_delay_ns = 200'000'000;
  std::int64_t close_due_ns_ = 0;
  ucs_status_ptr_t closing_ = nullptr;
  /// Of the peer's regions that UCX reads without the peer; null for the others.
  std::vector<ucp_rkey_h> keys_;

  send_credits lent_;
  owed_credits owed_;
  std::deque<std::unique_ptr<send_item>> waiting_;  // Bulk, for credits.
  std::uint32_t sends_in_flight_ = 0;
  std::array<std::uint64_t, 2> sent_{};
  std::array<std::uint64_t, 2> received_{};
  std::array<std::uint64_t, 2> last_{};
  std::array<std::uint32_t, 2> held_{};  // Frames that handlers have not let go of.
  std::vector<std::unique_ptr<get_item>> gets_;
  std::vector<awaited_piece> awaited_;
  std::uint64_t tickets_ = 0;
  std::vector<read_header> asked_;  // By the peer, not answered yet.
  std::uint32_t answers_in_flight_ = 0;
  std::optional<failed> failure_;
};

}  // namespace eldr::messages
