#pragma once
/// Actor `request`, one per live request: owns the truth about it (tokens delivered, attempt,
/// placement), retries, and streams to the client.
///
/// Takes Placed, Tokens, Failed (through the gateway actor), peer_up, peer_down and stop_request.
/// Sends Submit (router), Cancel (router, workers), Generated (client), request_ended (gateway).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/common/core.hpp"
#include "actors/common/directory.hpp"
#include "actors/common/settings.hpp"
#include "actors/common/wire.hpp"
#include "actors/request/text.hpp"
#include "actors/request/token_stream.hpp"

namespace eldr::actors {

/// What a gateway hands to a new request.
struct request_spec {
  request_id id;
  messages::session_id client = 0;
  std::uint64_t client_request = 0;  ///< The client's name for it.
  std::vector<gpu::token_id> prompt;
  generation gen;
  std::string label;
  bool record = false;  ///< Return the experts that tokens chose.
  std::int64_t arrived_ns = 0;
  directory peers;  ///< Sessions open now; changes follow as peer events.
};

class request_core final : public core {
 public:
  request_core(const settings&, request_spec, std::shared_ptr<const text_codec>, actor_ref gateway);

  void start(context&) override;
  void handle(context&, event&) override;

 private:
  enum class phase : std::uint8_t {
    no_router,  ///< Waits for a router's session.
    backoff,    ///< Waits before the next attempt.
    routing,    ///< Submitted, not placed.
    prefill,    ///< Placed; waits for the first token of the attempt.
    handoff,    ///< Has it; waits for the decoder to take over.
    decode,
  };
  /// A node that the current attempt depends on.
  struct placement {
    wire::Phase phase{};
    std::string node;
    std::uint64_t incarnation = 0;
  };

  void on_frame(context&, incoming&);
  /// Whether a frame is about the attempt that runs now. While the next one waits there is none:
  /// what the failed one still sends must not revive it.
  bool is_current(wire::Attempt::Reader) const;
  void on_placed(context&, wire::Placed::Reader);
  void on_tokens(context&, const peer_ptr& from, wire::Tokens::Reader);
  void on_failed(context&, wire::Failed::Reader);
  void on_peer_down(context&, const peer_ptr&);
  void on_wake(context&);
  void begin_attempt(context&);
  void submit(context&, const peer_ptr& router);
  void enter(context&, phase, std::int64_t within_ms);
  /// Ends the attempt; starts another after a pause, or gives up.
  void attempt_failed(context&, const failure&);
  void cancel_attempt(context&);
  /// Tells the client and the gateway, with the last tokens if any, and ends the actor.
  void finish(context&, wire::FinishReason, const failure& why,
              std::span<const gpu::token_id> fresh = {}, const std::string& text = {},
              capnp::Data::Reader choices = nullptr);
  void send_generated(context&, std::span<const gpu::token_id> fresh, const std::string& text,
                      wire::FinishReason, const failure& why,
                      capnp::Data::Reader choices = nullptr);
  attempt_key key() const { return {spec_.id, attempt_}; }

  settings settings_;
  request_spec spec_;
  std::shared_ptr<const text_codec> codec_;
  actor_ref gateway_;
  token_stream stream_;
  std::unique_ptr<text_decoder> text_;
  std::uint32_t attempt_ = 0;
  phase phase_ = phase::no_router;
  std::int64_t phase_deadline_ns_ = 0;
  messages::session_id router_ = 0;    ///< Session that the attempt was submitted over.
  std::vector<placement> placements_;  ///< Of the current attempt.
  std::vector<std::string> avoid_;
  std::uint64_t fingerprint_ = 0;  ///< Of the workers whose tokens were delivered.
  std::string prefill_node_;       ///< Last ones that served, for the client.
  std::string decode_node_;
  std::optional<std::int64_t> first_token_ns_;
  std::uint32_t cached_tokens_ = 0;
  bool ended_ = false;
};

}  // namespace eldr::actors
