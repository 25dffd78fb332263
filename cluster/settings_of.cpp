#include "cluster/settings_of.hpp"

namespace eldr::cluster {

actors::settings settings_of(const manifest& m) {
  actors::settings s;
  s.requests_max = m.limits.requests_max;
  s.router_queue_max = m.limits.router_queue_max;
  s.prefill_queue_max = m.limits.prefill_queue_max;
  s.decode_queue_max = m.limits.decode_queue_max;
  s.decode_batch_max = m.limits.decode_batch_max;
  s.prefill_chunk_tokens = m.limits.prefill_chunk_tokens;
  s.retries_max = m.limits.retries_max;
  s.block_tokens = m.kv.block_tokens;
  s.heartbeat_ms = m.timeouts.heartbeat_ms;
  s.health_deadline_ms = m.timeouts.health_deadline_ms;
  s.lease_ms = m.timeouts.lease_ms;
  s.route_ms = m.timeouts.route_ms;
  s.queue_ms = m.timeouts.queue_ms;
  s.prefill_ms = m.timeouts.prefill_ms;
  s.pull_ms = m.timeouts.pull_ms;
  s.decode_progress_ms = m.timeouts.decode_progress_ms;
  s.total_ms = m.timeouts.total_ms;
  s.settle_ms = m.timeouts.settle_ms;
  s.drain_ms = m.timeouts.drain_ms;
  s.policy = m.policy.name;
  s.policy_seed = m.policy.seed;
  s.tau = m.policy.tau;
  s.union_tau = m.policy.union_tau;
  s.candidates_min = m.policy.candidates_min;
  return s;
}

std::vector<actors::member> members_of(const manifest& m) {
  std::vector<actors::member> members;
  for (const auto& node : m.nodes) {
    members.push_back({node.name, std::string(to_string(node.role)), node.address()});
  }
  return members;
}

messages::transport_limits transport_limits_of(const manifest& m) {
  messages::transport_limits limits;
  limits.frame_bytes_max = m.limits.frame_bytes_max;
  limits.credit_frames = m.limits.credit_frames;
  limits.queue_bytes_max = m.limits.peer_queue_bytes_max;
  limits.client_queue_bytes_max = m.limits.client_buffer_bytes_max;
  limits.queue_frames_max = m.limits.peer_queue_frames_max;
  limits.reserved_frames_max = m.limits.peer_reserved_frames_max;
  limits.gets_in_flight = m.limits.gets_in_flight;
  limits.dial_timeout_ms = m.timeouts.dial_ms;
  return limits;
}

std::int32_t slot_of(const manifest& m, const node_spec& node) {
  std::int32_t slot = 0;
  for (const auto* decode : m.with_role(node_role::decode)) {
    if (decode->name == node.name) {
      return slot;
    }
    ++slot;
  }
  return -1;
}

}  // namespace eldr::cluster
