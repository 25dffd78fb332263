#pragma once
/// Builders of the messages that other nodes send to the actor under test.

#include <cstdint>
#include <string>
#include <vector>

#include "actors/common/wire.hpp"

namespace eldr::actors::test {

using token_ids = std::vector<gpu::token_id>;

// Each field has an initializer, so that tests name only what they care about.

struct submit_fields {
  attempt_key key{};
  token_ids tokens{};
  generation gen{.tokens_max = 8, .sampling = {}};
  std::vector<std::string> avoid{};
  std::uint64_t fingerprint = 0;
};
inline messages::outgoing_ptr make_submit(const submit_fields& f) {
  auto out = make_message(wire::ActorKind::ROUTER);
  auto submit = out->root().initSubmit();
  write(submit.initAttempt(), f.key);
  write(submit.initTokens(static_cast<unsigned>(f.tokens.size())), f.tokens);
  write(submit.initSampling(), f.gen);
  write(submit.initAvoid(static_cast<unsigned>(f.avoid.size())), f.avoid);
  submit.setFingerprint(f.fingerprint);
  return out;
}

struct prefill_task_fields {
  std::uint64_t number = 1;
  attempt_key key{};
  token_ids tokens{};
  generation gen{.tokens_max = 8, .sampling = {}};
  std::uint32_t generated = 0;
  std::vector<std::string> avoid{};
};
inline messages::outgoing_ptr make_prefill_task(const prefill_task_fields& f) {
  auto out = make_message(wire::ActorKind::PREFILL);
  auto task = out->root().initPrefillTask();
  task.setTaskNumber(f.number);
  write(task.initAttempt(), f.key);
  write(task.initTokens(static_cast<unsigned>(f.tokens.size())), f.tokens);
  write(task.initSampling(), f.gen);
  task.setGenerated(f.generated);
  task.setLabel("chat");
  write(task.initAvoid(static_cast<unsigned>(f.avoid.size())), f.avoid);
  return out;
}

struct handoff_fields {
  attempt_key key{};
  kv_ref kv{};
  gpu::token_id first_token = 5;
  generation gen{.tokens_max = 8, .sampling = {}};
  std::uint32_t generated = 0;
  std::uint64_t fingerprint = 0;
  std::vector<std::string> avoid{};
};
inline messages::outgoing_ptr make_handoff(const handoff_fields& f) {
  auto out = make_message(wire::ActorKind::ROUTER);
  auto handoff = out->root().initHandoff();
  write(handoff.initAttempt(), f.key);
  write(handoff.initKv(), f.kv);
  handoff.setFirstToken(f.first_token);
  write(handoff.initSampling(), f.gen);
  handoff.setTokenCount(f.kv.tokens);
  handoff.setGenerated(f.generated);
  handoff.setFingerprint(f.fingerprint);
  write(handoff.initAvoid(static_cast<unsigned>(f.avoid.size())), f.avoid);
  return out;
}

struct decode_task_fields {
  std::uint64_t number = 1;
  attempt_key key{};
  kv_ref kv{};
  gpu::token_id first_token = 5;
  generation gen{.tokens_max = 8, .sampling = {}};
  std::uint32_t generated = 0;
};
inline messages::outgoing_ptr make_decode_task(const decode_task_fields& f) {
  auto out = make_message(wire::ActorKind::DECODER);
  auto task = out->root().initDecodeTask();
  task.setTaskNumber(f.number);
  write(task.initAttempt(), f.key);
  write(task.initKv(), f.kv);
  task.setFirstToken(f.first_token);
  write(task.initSampling(), f.gen);
  task.setGenerated(f.generated);
  return out;
}

inline messages::outgoing_ptr make_released(const attempt_key& key, std::uint64_t lease, bool ok) {
  auto out = make_message(wire::ActorKind::DECODER);
  auto released = out->root().initReleased();
  write(released.initAttempt(), key);
  released.setLease(lease);
  released.setOk(ok);
  return out;
}

inline messages::outgoing_ptr make_placed(const attempt_key& key, wire::Phase phase,
                                          const messages::identity& worker) {
  auto out = make_message(wire::ActorKind::GATEWAY);
  auto placed = out->root().initPlaced();
  write(placed.initAttempt(), key);
  placed.setPhase(phase);
  placed.setNode(worker.node);
  placed.setIncarnation(worker.incarnation);
  placed.setFingerprint(worker.fingerprint);
  return out;
}

struct depth_fields {
  std::uint32_t waiting = 0;
  std::uint32_t running = 0;
  std::uint64_t last_processed = 0;
  std::vector<attempt_key> ended{};
  std::uint32_t total_blocks = 64;
  bool draining = false;
};
inline messages::outgoing_ptr make_queue_depth(const depth_fields& f) {
  auto out = make_message(wire::ActorKind::ROUTER);
  auto depth = out->root().initQueueDepth();
  depth.setWaiting(f.waiting);
  depth.setRunning(f.running);
  depth.setLastProcessed(f.last_processed);
  auto ended = depth.initEnded(static_cast<unsigned>(f.ended.size()));
  for (unsigned i = 0; i < f.ended.size(); ++i) {
    write(ended[i], f.ended[i]);
  }
  depth.setFreeBlocks(f.total_blocks);
  depth.setTotalBlocks(f.total_blocks);
  depth.setDraining(f.draining);
  return out;
}

struct generate_fields {
  std::uint64_t client_request = 1;
  std::string text{};
  token_ids ids{};
  generation gen{.tokens_max = 8, .sampling = {}};
  bool has_seed = true;
};
inline messages::outgoing_ptr make_generate(const generate_fields& f) {
  auto out = make_message(wire::ActorKind::GATEWAY);
  auto generate = out->root().initGenerate();
  generate.setClientRequest(f.client_request);
  generate.setText(f.text);
  write(generate.initIds(static_cast<unsigned>(f.ids.size())), f.ids);
  write(generate.initSampling(), f.gen);
  generate.setHasSeed(f.has_seed);
  return out;
}

inline messages::outgoing_ptr make_abort(std::uint64_t client_request) {
  auto out = make_message(wire::ActorKind::GATEWAY);
  out->root().initAbort().setClientRequest(client_request);
  return out;
}

inline messages::outgoing_ptr make_view(bool ready) {
  auto out = make_message(wire::ActorKind::GATEWAY);
  out->root().initClusterView().setReady(ready);
  return out;
}

inline messages::outgoing_ptr make_heartbeat() {
  auto out = make_message(wire::ActorKind::NODE);
  out->root().initHeartbeat();
  return out;
}

inline messages::outgoing_ptr make_status_request(std::uint64_t ticket) {
  auto out = make_message(wire::ActorKind::NODE);
  out->root().initStatusRequest().setTicket(ticket);
  return out;
}

inline messages::outgoing_ptr make_shutdown(std::uint32_t drain_ms) {
  auto out = make_message(wire::ActorKind::NODE);
  out->root().initShutdown().setDrainMs(drain_ms);
  return out;
}

}  // namespace eldr::actors::test
