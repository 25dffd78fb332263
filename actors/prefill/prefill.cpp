#include "actors/prefill/prefill.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace eldr::actors {

prefill_core::prefill_core(const settings& s, gpu::engine& engine, std::uint32_t block_count,
                           std::uint32_t region, actor_ref signature_cache)
    : worker_core(s, wire::Phase::PREFILL),
      engine_(engine),
      pool_(block_count, engine.layout().block_tokens),
      region_(region),
      signature_cache_(std::move(signature_cache)) {}

void prefill_core::on_message(context& ctx, const peer_ptr& from, wire::Message::Reader message) {
  switch (message.which()) {
    case wire::Message::PREFILL_TASK:
      on_task(ctx, from, message.getPrefillTask());
      break;
    case wire::Message::RELEASE:
      on_release(ctx, from, message.getRelease());
      break;
    default:
      break;
  }
}

void prefill_core::on_local(context& ctx, event& e) {
  if (auto* step = std::get_if<step_done>(&e)) {
    on_step_done(ctx, step->result);
  } else if (auto* summed = std::get_if<rows_summed>(&e)) {
    on_rows_summed(ctx, *summed);
  }
}

void prefill_core::on_task(context& ctx, const peer_ptr& router, wire::PrefillTask::Reader in) {
  const task_origin origin{read(in.getAttempt()), router->session};
  if (!accept(ctx, router, in.getTaskNumber(), origin.key)) {
    return;
  }
  const auto count = in.getTokens().size();
  if (count == 0 || engine_.layout().blocks_for(count) > pool_.block_count() ||
      count >= engine_.geometry().context_max) {
    fail(ctx, origin, wire::FailReason::TOO_LARGE,
         "a prompt of " + std::to_string(count) + " tokens does not fit this prefill worker");
    return;
  }
  if (queue_.size() >= limits().prefill_queue_max) {
    fail(ctx, origin, wire::FailReason::OVERLOADED, "the prefill queue is full",
         ctx.transport().self().node, 100);
    return;
  }
  task t;
  t.origin = origin;
  t.tokens = read(in.getTokens());
  t.gen = read(in.getSampling());
  t.generated = in.getGenerated();
  t.label = read(in.getLabel());
  t.avoid = read(in.getAvoid());
  t.record = in.getRecord();
  t.queue_deadline_ns = ctx.now_ns() + ms_to_ns(limits().queue_ms);
  queue_.push_back(std::move(t));
  ++tasks_;
  ledger_.touch();
}

void prefill_core::on_release(context& ctx, const peer_ptr& decoder, wire::Release::Reader in) {
  const auto key = read(in.getAttempt());
  auto outcome = leases_.release(in.getLease(), key, ctx.now_ns());
  pool_.unpin(outcome.blocks);
  if (in.getAbandon()) {
    return;
  }
  auto out = make_message(wire::ActorKind::DECODER);
  auto released = out->root().initReleased();
  write(released.initAttempt(), key);
  released.setLease(in.getLease());
  released.setOk(outcome.ok);
  send(ctx, decoder->session, std::move(out));
}

template <class Predicate>
void prefill_core::end_tasks(Predicate gone) {
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (gone(it->origin)) {
      ledger_.ended(it->origin.router, it->origin.key);
      ledger_.touch();
      it = queue_.erase(it);
    } else {
      ++it;
    }
  }
  std::vector<std::uint64_t> idle;
  for (auto& [ticket, t] : running_) {
    if (gone(t.origin)) {
      t.cancelled = true;
      // A step or a sum still reads the blocks: its end frees them.
      if (t.step_tokens == 0 && t.state == task_state::running) {
        idle.push_back(ticket);
      }
    }
  }
  for (auto ticket : idle) {
    const auto& origin = running_.at(ticket).origin;
    ledger_.ended(origin.router, origin.key);
    end_task(ticket);
  }
}

void prefill_core::on_cancel(context&, const attempt_key& up_to) {
  const auto covered = [&](const attempt_key& key) {
    return key.request == up_to.request && key.number <= up_to.number;
  };
  end_tasks([&](const task_origin& origin) { return covered(origin.key); });
  pool_.unpin(leases_.end_if([&](const lease_table::lease& l) { return covered(l.key); }));
}

void prefill_core::on_gateway_lost(context&, std::uint64_t incarnation) {
  end_tasks([&](const task_origin& o) { return o.key.request.gateway == incarnation; });
  pool_.unpin(leases_.end_if(
      [&](const lease_table::lease& l) { return l.key.request.gateway == incarnation; }));
}

void prefill_core::on_router_lost(context& ctx, messages::session_id router) {
  // The handoff of these tasks has nowhere to go; their requests try again at once.
  std::vector<task_origin> orphans;
  const auto note = [&](const task_origin& origin) {
    if (origin.router == router) {
      orphans.push_back(origin);
    }
  };
  std::for_each(queue_.begin(), queue_.end(), [&](const task& t) { note(t.origin); });
  for (const auto& [ticket, t] : running_) {
    if (!t.cancelled) {
      note(t.origin);
    }
  }
  end_tasks([&](const task_origin& o) { return o.router == router; });
  for (const auto& origin : orphans) {
    fail(ctx, origin, wire::FailReason::PEER_LOST, "the router of this task went away");
  }
}

void prefill_core::advance(context& ctx, deadline_set& deadlines) {
  self_ = ctx.self();
  expire(ctx);
  admit(ctx);
  start_step();
  deadlines.add(leases_.next_deadline_ns());
  if (!queue_.empty()) {
    deadlines.add(queue_.front().queue_deadline_ns);
  }
}

void prefill_core::expire(context& ctx) {
  const auto now = ctx.now_ns();
  pool_.unpin(leases_.expire(now));
  // The queue is first-in-first-out with one waiting time for all: the head expires first.
  while (!queue_.empty() && queue_.front().queue_deadline_ns <= now) {
    fail(ctx, queue_.front().origin, wire::FailReason::OVERLOADED,
         "waited too long for prefill blocks", ctx.transport().self().node, 500);
    queue_.pop_front();
    ledger_.touch();
  }
}

void prefill_core::admit(context&) {
  while (!queue_.empty()) {
    auto& t = queue_.front();
    // What is recorded must be run: cached blocks have no record of their tokens.
    auto blocks = t.record ? std::vector<gpu::block_id>() : pool_.match_and_pin(t.tokens);
    const auto hit = static_cast<std::uint32_t>(blocks.size());
    const auto total = engine_.layout().blocks_for(static_cast<std::uint32_t>(t.tokens.size()));
    auto fresh = pool_.allocate(total - hit);
    if (!fresh) {
      pool_.unpin(blocks);
      return;
    }
    blocks.insert(blocks.end(), fresh->begin(), fresh->end());
    t.blocks = std::move(blocks);
    t.cached_tokens = hit * pool_.block_tokens();
    t.position = t.cached_tokens;
    prompt_tokens_ += static_cast<std::int64_t>(t.tokens.size());
    cached_tokens_ += t.cached_tokens;
    running_.emplace(next_ticket_++, std::move(t));
    queue_.pop_front();
    ledger_.touch();
  }
}

void prefill_core::start_step() {
  if (step_in_flight_) {
    return;
  }
  gpu::step_batch batch;
  const auto block = pool_.block_tokens();
  // At least one block a step, and chunks end at block boundaries: the next one must start there.
  auto budget = std::max(limits().prefill_chunk_tokens / block, 1u) * block;
  for (auto& [ticket, t] : running_) {
    if (t.state != task_state::running || t.cancelled || budget == 0) {
      continue;
    }
    const auto left = static_cast<std::uint32_t>(t.tokens.size()) - t.position;
    const auto count = std::min(left, budget);
    gpu::sequence_slice slice;
    slice.sequence = ticket;
    slice.tokens.assign(t.tokens.begin() + t.position, t.tokens.begin() + t.position + count);
    slice.position = t.position;
    slice.blocks = t.blocks;
    slice.write_rows = true;
    if (count == left) {
      slice.sample = t.gen.sampling;
    }
    t.step_tokens = count;
    batch.record_choices = batch.record_choices || t.record;
    batch.slices.push_back(std::move(slice));
    budget -= std::min(budget, (count + block - 1) / block * block);
  }
  if (batch.slices.empty()) {
    return;
  }
  step_in_flight_ = true;
  ++steps_;
  engine_.submit(std::move(batch),
                 [self = self_](gpu::step_result r) { self->put(step_done{std::move(r)}); });
}

void prefill_core::on_step_done(context& ctx, gpu::step_result& result) {
  step_in_flight_ = false;
  if (!result.error.empty()) {
    ++engine_errors_;
    spdlog::error("prefill step failed: {}", result.error);
  }
  std::map<std::uint64_t, gpu::token_id> sampled;
  for (const auto& slice : result.slices) {
    if (const auto found = running_.find(slice.sequence);
        found != running_.end() && found->second.record) {
      auto& choices = found->second.choices;
      choices.insert(choices.end(), slice.choices.begin(), slice.choices.end());
    }
    if (slice.token) {
      sampled.emplace(slice.sequence, *slice.token);
    }
  }
  std::vector<std::uint64_t> in_step;
  for (auto& [ticket, t] : running_) {
    if (t.step_tokens > 0) {
      in_step.push_back(ticket);
    }
  }
  for (auto ticket : in_step) {
    auto& t = running_.at(ticket);
    t.position += std::exchange(t.step_tokens, 0);
    if (t.cancelled) {
      ledger_.ended(t.origin.router, t.origin.key);
      end_task(ticket);
    } else if (!result.error.empty()) {
      fail(ctx, t.origin, wire::FailReason::ENGINE, "the engine failed: " + result.error,
           ctx.transport().self().node);
      end_task(ticket);
    } else if (t.position == t.tokens.size()) {
      prompt_done(ctx, ticket, t, sampled.at(ticket));
    }
  }
}

void prefill_core::prompt_done(context& ctx, std::uint64_t ticket, task& t, gpu::token_id first) {
  t.first_token = first;
  pool_.publish(t.tokens, t.blocks);
  const auto finish = engine_.is_end_token(first) ? wire::FinishReason::EOS
                      : t.gen.tokens_max <= 1     ? wire::FinishReason::LENGTH
                                                  : wire::FinishReason::NONE;
  if (auto gateway = gateway_of(t.origin.key)) {
    send(ctx, gateway->session,
         make_tokens(t.origin.key, t.generated, {&first, 1}, finish, t.cached_tokens, t.choices));
  }
  if (finish != wire::FinishReason::NONE) {
    ledger_.ended(t.origin.router, t.origin.key);
    end_task(ticket);
    return;
  }
  t.state = task_state::summing;
  signature_cache_->put(sum_rows{ticket, t.blocks, ctx.self()});
}

void prefill_core::on_rows_summed(context& ctx, rows_summed& summed) {
  auto found = running_.find(summed.ticket);
  if (found == running_.end()) {
    return;
  }
  auto& t = found->second;
  ledger_.ended(t.origin.router, t.origin.key);
  if (t.cancelled) {
    end_task(summed.ticket);
    return;
  }
  hand_off(ctx, t, summed.cells);
  running_.erase(found);
  ledger_.touch();
}

void prefill_core::hand_off(context& ctx, task& t, const std::vector<std::uint16_t>& signature) {
  const auto& self = ctx.transport().self();
  kv_ref ref{self.node, self.incarnation, 0,
             region_,   t.blocks,         static_cast<std::uint32_t>(t.tokens.size())};
  // The lease takes over the task's pins.
  ref.lease = leases_.grant(
      {t.origin.key, std::move(t.blocks), ctx.now_ns() + ms_to_ns(limits().lease_ms)});
  ++handoffs_;
  const auto bytes = signature.size() * sizeof(std::uint16_t);
  auto out = make_message(wire::ActorKind::ROUTER,
                          bytes / 8 + words_for_u32(ref.blocks.size()) + 32 + t.avoid.size() * 8);
  auto handoff = out->root().initHandoff();
  write(handoff.initAttempt(), t.origin.key);
  write(handoff.initKv(), ref);
  // The wire is little-endian, as are all machines that this builds for (checked in prefill.hpp).
  std::memcpy(handoff.initSignature(static_cast<unsigned>(bytes)).begin(), signature.data(), bytes);
  handoff.setFirstToken(t.first_token);
  write(handoff.initSampling(), t.gen);
  handoff.setTokenCount(ref.tokens);
  handoff.setGenerated(t.generated);
  handoff.setLabel(t.label);
  handoff.setFingerprint(self.fingerprint);
  handoff.setRecord(t.record);
  write(handoff.initAvoid(static_cast<unsigned>(t.avoid.size())), t.avoid);
  send(ctx, t.origin.router, std::move(out));
}

void prefill_core::end_task(std::uint64_t ticket) {
  auto found = running_.find(ticket);
  pool_.unpin(found->second.blocks);
  running_.erase(found);
  ledger_.touch();
}

void prefill_core::fill(wire::QueueDepth::Builder depth) const {
  depth.setWaiting(static_cast<std::uint32_t>(queue_.size()));
  depth.setRunning(static_cast<std::uint32_t>(running_.size()));
  depth.setFreeBlocks(pool_.available());
  depth.setTotalBlocks(pool_.block_count());
}

named_counts prefill_core::counts() const {
  return {
      {"in_flight", static_cast<std::int64_t>(queue_.size() + running_.size() + leases_.size())},
      {"waiting", static_cast<std::int64_t>(queue_.size())},
      {"running", static_cast<std::int64_t>(running_.size())},
      {"leases", static_cast<std::int64_t>(leases_.size())},
      {"blocks_total", pool_.block_count()},
      {"blocks_free", pool_.free_count()},
      {"blocks_cached", pool_.cached_count()},
      {"blocks_pinned", pool_.pinned_count()},
      {"tasks_total", tasks_},
      {"steps_total", steps_},
      {"handoffs_total", handoffs_},
      {"prompt_tokens_total", prompt_tokens_},
      {"cached_tokens_total", cached_tokens_},
      {"leases_expired_total", static_cast<std::int64_t>(leases_.expired_total())},
      {"engine_errors_total", engine_errors_}};
}

}  // namespace eldr::actors
