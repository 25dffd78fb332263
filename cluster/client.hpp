#pragma once
/// A command's end of a cluster: attaches to its nodes as a client, sends prompts and questions.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/common/wire.hpp"
#include "cluster/manifest.hpp"

namespace eldr::cluster {

/// One sentence for people.
struct client_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What a client asks of a gateway.
struct completion_request {
  std::string text;  ///< Or:
  std::vector<gpu::token_id> ids;
  actors::generation gen;
  bool has_seed = false;
  std::string label;
  bool record = false;  ///< Return the experts that every token chose.
};

/// A piece of an answer; the last has `finish` set and the facts below it.
struct completion_piece {
  std::uint64_t request = 0;
  std::uint32_t position = 0;
  std::vector<gpu::token_id> ids;
  std::string text;
  std::vector<std::uint16_t> choices;  ///< If recorded: [tokens run][layers][k].
  wire::FinishReason finish = wire::FinishReason::NONE;
  wire::FailReason fail_reason = wire::FailReason::NONE;
  std::string error;
  std::uint32_t retry_after_ms = 0;
  std::string prefill_node;
  std::string decode_node;
  std::uint32_t attempts = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_tokens = 0;
  std::uint64_t ttft_us = 0;
  std::uint64_t total_us = 0;
  std::uint64_t seed = 0;
};

struct worker_view {
  std::string node;
  std::string role;
  std::uint32_t depth = 0;
  std::uint32_t blocks_total = 0;
  bool draining = false;
  std::int32_t slot = -1;
};

struct node_status {
  std::string node;
  std::string role;
  std::uint64_t incarnation = 0;
  bool ready = false;
  bool draining = false;
  std::uint64_t uptime_ms = 0;
  std::string backend;
  std::uint64_t fingerprint = 0;
  std::vector<std::string> peers;
  std::vector<std::pair<std::string, std::int64_t>> counts;
  std::vector<worker_view> workers;  ///< Of a router.
};

/// What routes at a router, or why it was not changed.
struct policy_state {
  std::string error;
  std::string policy;
  float tau = 0;
  std::uint32_t candidates_min = 0;
  std::string artifact;
};

/// How a request was placed on its decode worker.
struct placement_explained {
  struct candidate {
    std::string node;
    std::int32_t slot = -1;
    std::uint32_t load = 0;
    float similarity = 0;
    float cost = 0;
    bool in_band = false;
  };
  bool found = false;
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::string policy;
  std::string why;
  std::string chosen;
  std::uint32_t tokens = 0;
  std::string label;
  std::uint64_t decision_ns = 0;
  std::uint64_t age_ms = 0;
  std::vector<candidate> candidates;
};

/// The session with a node ended.
struct node_lost {
  std::string node;
  std::string why;
};

using client_event =
    std::variant<completion_piece, node_status, policy_state, placement_explained, node_lost>;

class client {
 public:
  /// Reads the token file. Throws token_error or std::runtime_error.
  explicit client(const manifest&);
  /// Leaves the cluster; what was still running for it is cancelled there.
  ~client();
  client(const client&) = delete;
  client& operator=(const client&) = delete;

  /// Opens a session. Throws client_error that says why there is none.
  void attach(const node_spec&, std::chrono::milliseconds timeout = std::chrono::seconds(2));
  /// Opens sessions with as many of `nodes` as answer; the others with the reason.
  std::map<std::string, std::string> attach_all(
      const std::vector<const node_spec*>& nodes,
      std::chrono::milliseconds timeout = std::chrono::seconds(2));
  bool attached(const std::string& node) const;

  /// Sends a prompt to a gateway; its pieces come from next(). Returns the request's number.
  std::uint64_t submit(const std::string& gateway, const completion_request&);
  void cancel(const std::string& gateway, std::uint64_t request);
  void ask_status(const std::string& node);
  /// Changes the policy of a router; what is left empty or negative stays. Answered by
  /// policy_state.
  void set_policy(const std::string& router, const std::string& policy, float tau,
                  std::uint32_t candidates_min, const std::string& artifact_path);
  /// Asks a router about a request by its counter; 0: the latest. Answered by placement_explained.
  void explain(const std::string& router, std::uint64_t counter);
  void shut_down(const std::string& node, std::uint32_t drain_ms);

  /// Next event, in order of arrival; none if there is none within `timeout`.
  std::optional<client_event> next(std::chrono::milliseconds timeout);

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace eldr::cluster
