#pragma once
/// Actor `decoder`: admits handed-off requests, pulls their KV blocks by one-sided reads, and
/// decodes them in one continuous batch.
///
/// Takes DecodeTask (router), Cancel (request), Released (prefill), get_done (transport) and
/// step_done (engine). Sends Tokens and Failed (request), Release (prefill) and QueueDepth
/// (router).

#include <cstdint>
#include <map>
#include <vector>

#include "actors/common/worker_core.hpp"
#include "gpu/block_pool.hpp"
#include "gpu/engine.hpp"

namespace eldr::actors {

class decoder_core final : public worker_core {
 public:
  /// `engine` outlives the actor; `kv` is its pool's memory. `slot`: the centroid slot it keeps,
  /// -1 for none.
  decoder_core(const settings&, gpu::engine& engine, std::span<std::byte> kv,
               std::uint32_t block_count, std::int32_t slot);

 private:
  /// queued -> pulling (blocks reserved, read under way) -> releasing (waits for Released) ->
  /// decoding. `Released{ok}` is the only way into decoding.
  enum class phase : std::uint8_t { queued, pulling, releasing, decoding };
  struct sequence {
    task_origin origin;
    phase state = phase::queued;
    kv_ref kv;
    messages::session_id prefill = 0;  ///< Session that the pull runs over.
    generation gen;
    std::uint32_t generated = 0;    ///< Position of the first token among the generated ones.
    std::uint32_t tokens_done = 1;  ///< The first token included.
    gpu::token_id last_token = 0;
    bool record = false;
    std::vector<gpu::block_id> blocks;
    std::int64_t deadline_ns = 0;  ///< Of the queue, then of the pull.
    bool in_step = false;
    bool cancelled = false;
  };

  void on_message(context&, const peer_ptr&, wire::Message::Reader) override;
  void on_local(context&, event&) override;
  void on_cancel(context&, const attempt_key& up_to) override;
  void on_gateway_lost(context&, std::uint64_t incarnation) override;
  void on_worker_lost(context&, const peer_ptr&) override;
  void advance(context&, deadline_set&) override;
  void fill(wire::QueueDepth::Builder) const override;
  named_counts counts() const override;

  void on_task(context&, const peer_ptr& router, wire::DecodeTask::Reader);
  void on_released(context&, wire::Released::Reader);
  void on_get_done(context&, const get_done&);
  void on_step_done(context&, gpu::step_result&);
  void on_token(context&, std::uint64_t ticket, sequence&, const gpu::slice_result&);
  void expire(context&);
  void admit(context&);
  void start_pull(context&, std::uint64_t ticket, sequence&);
  void start_step();
  /// Ends a sequence that failed; its KvRef is abandoned if it was not released yet.
  void give_up(context&, std::uint64_t ticket, wire::FailReason, const std::string& detail,
               const std::string& suspect = {}, std::uint32_t retry_after_ms = 0);
  void abandon(context&, const task_origin&, const kv_ref&);
  template <class Predicate>
  void end_sequences(context&, Predicate gone);
  /// Frees the blocks of a sequence that no step and no read uses, and forgets it.
  void end_sequence(std::uint64_t ticket);
  std::size_t count(phase) const;
  std::uint32_t blocks_needed(const sequence&) const;

  gpu::engine& engine_;
  gpu::block_pool pool_;
  std::span<std::byte> kv_;
  std::int32_t slot_;
  std::map<std::uint64_t, sequence> sequences_;  ///< By ticket, in order of arrival.
  std::uint64_t next_ticket_ = 1;
  bool step_in_flight_ = false;
  actor_ref self_;
  // Last step, for the load report.
  std::uint32_t step_us_ = 0;
  std::uint32_t batch_ = 0;
  float distinct_experts_ = 0;
  // Counted for people.
  std::int64_t tasks_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t sequence_steps_ = 0;    ///< Sum over steps of the batch.
  double sequence_experts_ = 0;        ///< Sum over steps of batch times distinct experts a layer.
  std::int64_t pulled_bytes_ = 0;
  std::int64_t pulls_failed_ = 0;
  std::int64_t engine_errors_ = 0;
};

}  // namespace eldr::actors
