#pragma once
/// Actor `prefill`: runs prompts in chunks, publishes their blocks in the prefix cache, sends the
/// first token to the request and the KV reference with its signature to the router.
///
/// Takes PrefillTask (router), Cancel (request), Release (decoder), rows_summed (signature cache)
/// and step_done (engine). Sends Tokens and Failed (request), Handoff and QueueDepth (router),
/// Released (decoder), sum_rows (signature cache).

#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "actors/common/worker_core.hpp"
#include "actors/prefill/lease_table.hpp"
#include "gpu/block_pool.hpp"
#include "gpu/engine.hpp"

namespace eldr::actors {

static_assert(std::endian::native == std::endian::little, "signatures travel little-endian");

class prefill_core final : public worker_core {
 public:
  /// `engine` outlives the actor; its KV pool is region `region` of the node's transport.
  prefill_core(const settings&, gpu::engine& engine, std::uint32_t block_count,
               std::uint32_t region, actor_ref signature_cache);

 private:
  enum class task_state : std::uint8_t { running, summing };
  struct task {
    task_origin origin;
    std::vector<gpu::token_id> tokens;
    generation gen;
    std::uint32_t generated = 0;
    std::string label;
    std::vector<std::string> avoid;
    bool record = false;
    std::vector<std::uint16_t> choices;  ///< If recorded: [tokens run][layers][k].
    std::int64_t queue_deadline_ns = 0;
    // From here on: set by admission.
    task_state state = task_state::running;
    std::vector<gpu::block_id> blocks;
    std::uint32_t cached_tokens = 0;
    std::uint32_t position = 0;     ///< Next token to run.
    std::uint32_t step_tokens = 0;  ///< Tokens of it in the step that runs now.
    gpu::token_id first_token = 0;
    bool cancelled = false;
  };

  void on_message(context&, const peer_ptr&, wire::Message::Reader) override;
  void on_local(context&, event&) override;
  void on_cancel(context&, const attempt_key& up_to) override;
  void on_gateway_lost(context&, std::uint64_t incarnation) override;
  void on_router_lost(context&, messages::session_id) override;
  void advance(context&, deadline_set&) override;
  void fill(wire::QueueDepth::Builder) const override;
  named_counts counts() const override;

  void on_task(context&, const peer_ptr& router, wire::PrefillTask::Reader);
  void on_release(context&, const peer_ptr& decoder, wire::Release::Reader);
  void on_step_done(context&, gpu::step_result&);
  void on_rows_summed(context&, rows_summed&);
  void expire(context&);
  void admit(context&);
  void start_step();
  void prompt_done(context&, std::uint64_t ticket, task&, gpu::token_id first);
  void hand_off(context&, task&, const std::vector<std::uint16_t>& signature);
  /// Ends all tasks and leases for which `gone` holds.
  template <class Predicate>
  void end_tasks(Predicate gone);
  /// Frees the blocks of a task that no step and no sum reads, and forgets it.
  void end_task(std::uint64_t ticket);

  gpu::engine& engine_;
  gpu::block_pool pool_;
  std::uint32_t region_;
  actor_ref signature_cache_;
  std::deque<task> queue_;
  std::map<std::uint64_t, task> running_;  ///< By ticket, in order of admission.
  lease_table leases_;
  std::uint64_t next_ticket_ = 1;
  bool step_in_flight_ = false;
  actor_ref self_;
  // Counted for people.
  std::int64_t tasks_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t handoffs_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t cached_tokens_ = 0;
  std::int64_t engine_errors_ = 0;
};

}  // namespace eldr::actors
