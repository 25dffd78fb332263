#pragma once
/// What can wake an actor: frames from other nodes, session events, and the messages that actors
/// of one node send each other. Between nodes everything is a Cap'n Proto message; inside a node
/// these structs travel through the mailboxes.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/common/ids.hpp"
#include "gpu/engine.hpp"
#include "messages/transport.hpp"

namespace eldr::actors {

using peer_ptr = std::shared_ptr<const messages::peer>;

class mailbox;
/// Address of an actor on this node. Sending to an actor that has ended is a no-op.
using actor_ref = std::shared_ptr<mailbox>;

/// A frame for this actor, with the session that it came by.
struct incoming {
  messages::frame_ptr frame;
  peer_ptr from;
};
/// A session opened. No frame of it came before.
struct peer_up {
  peer_ptr peer;
};
/// A session ended. No frame of it comes after.
struct peer_down {
  peer_ptr peer;
  messages::end_reason reason{};
  std::string detail;
};
/// Transport to node actor: a dial did not lead to a session.
struct dial_failed {
  std::string address;
  std::string error;
};
/// The time asked for with context::wake_at has come.
struct wake {};
/// Engine to worker: a step has ended.
struct step_done {
  gpu::step_result result;
};
/// Transport to decoder: a pull has ended.
struct get_done {
  std::uint64_t ticket = 0;
  messages::get_status status{};
};
/// Prefill to signature cache: sum the rows of these blocks, which stay pinned until the answer.
struct sum_rows {
  std::uint64_t ticket = 0;
  std::vector<gpu::block_id> blocks;
  actor_ref reply_to;
};
/// Signature cache to prefill: [layers][experts].
struct rows_summed {
  std::uint64_t ticket = 0;
  std::vector<std::uint16_t> cells;
};
/// Gateway to request: the client went away or asked to stop.
struct stop_request {};
/// Request to gateway: it has ended and told its client.
struct request_ended {
  std::uint64_t counter = 0;
  wire::FinishReason finish{};
  std::uint32_t attempts = 0;
  std::uint32_t tokens = 0;
};
/// Node to the node's other actors: what do you count? Answered by `described`.
struct describe {
  std::uint64_t ticket = 0;
  actor_ref reply_to;
};
using named_counts = std::vector<std::pair<std::string, std::int64_t>>;
struct described {
  std::uint64_t ticket = 0;
  named_counts counts;
  std::vector<std::byte> workers;  ///< Router: a flat wire::ClusterView, else empty.
};
/// Node to the node's other actors: take nothing new, finish what runs.
struct drain {};

using event =
    std::variant<incoming, peer_up, peer_down, dial_failed, wake, step_done, get_done, sum_rows,
                 rows_summed, stop_request, request_ended, describe, described, drain>;

/// Where events for an actor are put; callable from any thread.
class mailbox {
 public:
  virtual ~mailbox() = default;
  virtual void put(event) = 0;
};

}  // namespace eldr::actors
