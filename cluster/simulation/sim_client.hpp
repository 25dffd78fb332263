#pragma once
/// The client of a simulated cluster: sends prompts, cancels some, and notes what came back and
/// whether it came in order and once.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/common/wire.hpp"
#include "messages/memory_network.hpp"

namespace eldr::cluster {

/// A request as the client sees it.
struct sim_request {
  std::vector<gpu::token_id> prompt;
  actors::generation gen;
  std::string gateway;
  // What came back.
  std::vector<gpu::token_id> tokens;
  wire::FinishReason finish = wire::FinishReason::NONE;
  wire::FailReason fail_reason = wire::FailReason::NONE;
  std::string error;
  std::uint32_t attempts = 0;
  std::uint32_t cached_tokens = 0;
  bool sent = false;
  bool cancelled = false;
  std::string violation;  ///< Not empty: tokens came twice, out of order or after the end.

  bool ended() const { return finish != wire::FinishReason::NONE; }
};

class sim_client final : public messages::transport_events {
 public:
  sim_client(messages::memory_network& network, std::vector<std::string> addresses);
  ~sim_client() override;

  /// Sends a request to a gateway; it fails at once if there is no session with it. The label
  /// "q<index>" travels with it. Returns its index.
  std::size_t submit(sim_request request);
  void cancel(std::size_t index);
  const std::vector<sim_request>& requests() const noexcept { return requests_; }
  bool all_ended() const;
  /// Asks every node for its counts; answers gather in statuses().
  void ask_status();
  const std::map<std::string, std::map<std::string, std::int64_t>>& statuses() const noexcept {
    return statuses_;
  }
  std::size_t sessions() const noexcept { return sessions_.size(); }
  bool connected(const std::string& node) const { return sessions_.contains(node); }

  void opened(const messages::peer&) override;
  void received(messages::frame_ptr) override;
  void ended(const messages::peer&, messages::end_reason, const std::string&) override;
  void dial_failed(const std::string& address, const std::string& error) override;

  /// Addresses to dial again; the driver calls it when time has passed.
  void redial();

 private:
  void on_generated(wire::Generated::Reader);

  std::unique_ptr<messages::transport> transport_;
  std::map<std::string, messages::session_id> sessions_;  ///< By node.
  std::set<std::string> to_dial_;
  std::vector<sim_request> requests_;
  std::map<std::string, std::map<std::string, std::int64_t>> statuses_;
};

}  // namespace eldr::cluster
