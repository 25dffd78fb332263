#pragma once
/// Actor `gateway`: the door of a gateway node. Checks what clients ask, starts one `request` actor
/// per accepted request, and brings frames and session events to them.
///
/// Takes Generate and Abort (client), Placed, Tokens and Failed (for requests), ClusterView
/// (router) and request_ended. Sends Generated{error} (client) and Cancel (to whoever works for a
/// request that is not alive).

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "actors/common/core.hpp"
#include "actors/common/directory.hpp"
#include "actors/common/settings.hpp"
#include "actors/request/request.hpp"
#include "actors/request/text.hpp"

namespace eldr::actors {

class gateway_core final : public core {
 public:
  gateway_core(const settings&, std::shared_ptr<const text_codec>);

  void handle(context&, event&) override;

 private:
  struct live_request {
    actor_ref actor;
    messages::session_id client = 0;
    std::uint64_t client_request = 0;
  };

  void on_incoming(context&, incoming&);
  void on_generate(context&, const peer_ptr& client, wire::Generate::Reader);
  void on_abort(const peer_ptr& client, std::uint64_t client_request);
  /// Brings a frame about an attempt to its request, or cancels the attempt at the sender.
  void deliver(context&, incoming&, const attempt_key&);
  void on_peer_down(context&, event&, const peer_ptr&);
  void broadcast(const event&);
  void on_ended(const request_ended&);
  void refuse(context&, const peer_ptr& client, std::uint64_t client_request, wire::FailReason,
              const std::string& why, std::uint32_t retry_after_ms = 0);
  named_counts counts() const;

  settings settings_;
  std::shared_ptr<const text_codec> codec_;
  directory peers_;
  std::map<std::uint64_t, live_request> live_;  ///< By request counter.
  std::map<messages::session_id, std::map<std::uint64_t, std::uint64_t>> clients_;
  std::uint64_t next_counter_ = 1;
  bool draining_ = false;
  std::set<std::string> ready_routers_;
  // Counted for people.
  std::int64_t accepted_ = 0;
  std::int64_t refused_ = 0;
  std::int64_t finished_ = 0;
  std::int64_t failed_ = 0;
  std::int64_t cancelled_ = 0;
  std::int64_t retries_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace eldr::actors
