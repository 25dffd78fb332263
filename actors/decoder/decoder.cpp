#include "actors/decoder/decoder.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace eldr::actors {

decoder_core::decoder_core(const settings& s, gpu::engine& engine, std::span<std::byte> kv,
                           std::uint32_t block_count, std::int32_t slot)
    : worker_core(s, wire::Phase::DECODE),
      engine_(engine),
      pool_(block_count, engine.layout().block_tokens),
      kv_(kv),
      slot_(slot) {}

void decoder_core::on_message(context& ctx, const peer_ptr& from, wire::Message::Reader message) {
  switch (message.which()) {
    case wire::Message::DECODE_TASK:
      on_task(ctx, from, message.getDecodeTask());
      break;
    case wire::Message::RELEASED:
      on_released(ctx, message.getReleased());
      break;
    default:
      break;
  }
}

void decoder_core::on_local(context& ctx, event& e) {
  if (auto* step = std::get_if<step_done>(&e)) {
    on_step_done(ctx, step->result);
  } else if (auto* got = std::get_if<get_done>(&e)) {
    on_get_done(ctx, *got);
  }
}

std::uint32_t decoder_core::blocks_needed(const sequence& s) const {
  // The last generated token is never fed back, so it needs no KV.
  return engine_.layout().blocks_for(s.kv.tokens + s.gen.tokens_max - 1);
}

void decoder_core::on_task(context& ctx, const peer_ptr& router, wire::DecodeTask::Reader in) {
  sequence s;
  s.origin = {read(in.getAttempt()), router->session};
  s.kv = read(in.getKv());
  s.gen = read(in.getSampling());
  s.generated = in.getGenerated();
  s.last_token = in.getFirstToken();
  s.record = in.getRecord();
  if (!accept(ctx, router, in.getTaskNumber(), s.origin.key)) {
    abandon(ctx, s.origin, s.kv);
    return;
  }
  const auto refuse = [&](wire::FailReason reason, const std::string& why,
                          const std::string& suspect, std::uint32_t retry_after_ms) {
    fail(ctx, s.origin, reason, why, suspect, retry_after_ms);
    abandon(ctx, s.origin, s.kv);
  };
  if (s.gen.tokens_max < 2 || s.kv.tokens == 0 ||
      s.kv.blocks.size() != engine_.layout().blocks_for(s.kv.tokens)) {
    refuse(wire::FailReason::INVALID, "the decode task contradicts itself", {}, 0);
  } else if (std::uint64_t{s.kv.tokens} + s.gen.tokens_max > engine_.geometry().context_max) {
    refuse(wire::FailReason::TOO_LARGE,
           "prompt and answer are longer than the model's context of " +
               std::to_string(engine_.geometry().context_max) + " tokens",
           {}, 0);
  } else if (blocks_needed(s) > pool_.block_count()) {
    refuse(wire::FailReason::TOO_LARGE,
           "prompt and answer need " + std::to_string(blocks_needed(s)) +
               " KV blocks, the pool has " + std::to_string(pool_.block_count()),
           {}, 0);
  } else if (count(phase::queued) >= limits().decode_queue_max) {
    refuse(wire::FailReason::OVERLOADED, "the decode queue is full", ctx.transport().self().node,
           100);
  } else {
    s.deadline_ns = ctx.now_ns() + ms_to_ns(limits().queue_ms);
    sequences_.emplace(next_ticket_++, std::move(s));
    ++tasks_;
    ledger_.touch();
  }
}

void decoder_core::advance(context& ctx, deadline_set& deadlines) {
  self_ = ctx.self();
  expire(ctx);
  admit(ctx);
  start_step();
  for (const auto& [ticket, s] : sequences_) {
    if (s.state != phase::decoding && !s.cancelled) {
      deadlines.add(s.deadline_ns);
    }
  }
}

void decoder_core::expire(context& ctx) {
  const auto now = ctx.now_ns();
  std::vector<std::uint64_t> overdue;
  for (const auto& [ticket, s] : sequences_) {
    if (s.state != phase::decoding && !s.cancelled && s.deadline_ns <= now) {
      overdue.push_back(ticket);
    }
  }
  for (auto ticket : overdue) {
    if (sequences_.at(ticket).state == phase::queued) {
      give_up(ctx, ticket, wire::FailReason::OVERLOADED, "waited too long for decode blocks",
              ctx.transport().self().node, 500);
    } else {
      give_up(ctx, ticket, wire::FailReason::PULL_FAILED, "the KV pull took too long",
              sequences_.at(ticket).kv.node);
    }
  }
}

void decoder_core::admit(context& ctx) {
  std::vector<std::uint64_t> queued;
  for (const auto& [ticket, s] : sequences_) {
    if (s.state == phase::queued) {
      queued.push_back(ticket);
    }
  }
  for (auto ticket : queued) {
    auto& s = sequences_.at(ticket);
    // Counted anew each time: a pull that could not begin has left its place.
    if (sequences_.size() - count(phase::queued) >= limits().decode_batch_max) {
      return;
    }
    auto blocks = pool_.allocate(blocks_needed(s));
    if (!blocks) {
      return;  // In order of arrival: a small one does not overtake a large one for ever.
    }
    s.blocks = std::move(*blocks);
    ledger_.touch();
    start_pull(ctx, ticket, s);
  }
}

void decoder_core::start_pull(context& ctx, std::uint64_t ticket, sequence& s) {
  const auto peer = peers_.find(s.kv.node);
  s.state = phase::pulling;
  s.deadline_ns = ctx.now_ns() + ms_to_ns(limits().pull_ms);
  if (!peer || peer->id.incarnation != s.kv.incarnation) {
    give_up(ctx, ticket, wire::FailReason::PULL_FAILED, "no session with " + s.kv.node, s.kv.node);
    return;
  }
  if (peer->id.layout != ctx.transport().self().layout) {
    give_up(ctx, ticket, wire::FailReason::INVALID, s.kv.node + " has another KV layout",
            s.kv.node);
    return;
  }
  s.prefill = peer->session;
  const auto block_bytes = engine_.layout().block_bytes();
  std::vector<messages::get_range> ranges;
  ranges.reserve(s.kv.blocks.size());
  for (std::size_t i = 0; i < s.kv.blocks.size(); ++i) {
    ranges.push_back({std::uint64_t{s.kv.blocks[i]} * block_bytes,
                      kv_.data() + std::size_t{s.blocks[i]} * block_bytes, block_bytes});
  }
  pulled_bytes_ += static_cast<std::int64_t>(ranges.size() * block_bytes);
  ctx.transport().get(s.prefill, s.kv.region, std::move(ranges),
                      [self = self_, ticket](messages::get_status status) {
                        self->put(get_done{ticket, status});
                      });
}

void decoder_core::on_get_done(context& ctx, const get_done& got) {
  auto found = sequences_.find(got.ticket);
  if (found == sequences_.end() || found->second.state != phase::pulling) {
    return;
  }
  auto& s = found->second;
  if (s.cancelled) {
    // Whatever was read is dropped; only now are the blocks ours again.
    ledger_.ended(s.origin.router, s.origin.key);
    abandon(ctx, s.origin, s.kv);
    end_sequence(got.ticket);
    return;
  }
  if (got.status != messages::get_status::ok) {
    ++pulls_failed_;
    s.state = phase::releasing;  // No read is under way any more.
    give_up(ctx, got.ticket, wire::FailReason::PULL_FAILED,
            std::string("the KV pull failed: ") + to_string(got.status), s.kv.node);
    return;
  }
  s.state = phase::releasing;
  send(ctx, s.prefill, make_release(s.origin.key, s.kv.lease, false));
}

void decoder_core::on_released(context& ctx, wire::Released::Reader in) {
  const auto key = read(in.getAttempt());
  for (auto& [ticket, s] : sequences_) {
    if (s.origin.key != key || s.state != phase::releasing || s.kv.lease != in.getLease()) {
      continue;
    }
    if (!in.getOk()) {
      give_up(ctx, ticket, wire::FailReason::LEASE_EXPIRED, "the KV lease had run out", s.kv.node);
      return;
    }
    s.state = phase::decoding;
    if (auto gateway = gateway_of(key)) {
      send(ctx, gateway->session,
           make_tokens(key, s.generated, {&s.last_token, 1}, wire::FinishReason::NONE, 0));
    }
    return;
  }
}

void decoder_core::start_step() {
  if (step_in_flight_) {
    return;
  }
  gpu::step_batch batch;
  for (auto& [ticket, s] : sequences_) {
    if (s.state != phase::decoding || s.cancelled) {
      continue;
    }
    gpu::sequence_slice slice;
    slice.sequence = ticket;
    slice.tokens = {s.last_token};
    slice.position = s.kv.tokens + s.tokens_done - 1;
    slice.blocks = s.blocks;
    slice.sample = s.gen.sampling;
    s.in_step = true;
    batch.record_choices = batch.record_choices || s.record;
    batch.slices.push_back(std::move(slice));
  }
  if (batch.slices.empty()) {
    return;
  }
  step_in_flight_ = true;
  batch_ = static_cast<std::uint32_t>(batch.slices.size());
  ++steps_;
  engine_.submit(std::move(batch),
                 [self = self_](gpu::step_result r) { self->put(step_done{std::move(r)}); });
}

void decoder_core::on_step_done(context& ctx, gpu::step_result& result) {
  step_in_flight_ = false;
  step_us_ = static_cast<std::uint32_t>(result.compute_s * 1e6);
  if (!result.distinct_experts.empty()) {
    float sum = 0;
    for (auto n : result.distinct_experts) {
      sum += n;
    }
    distinct_experts_ = sum / static_cast<float>(result.distinct_experts.size());
    sequence_steps_ += batch_;
    sequence_experts_ += static_cast<double>(batch_) * distinct_experts_;
  }
  if (!result.error.empty()) {
    ++engine_errors_;
    spdlog::error("decode step failed: {}", result.error);
    std::vector<std::uint64_t> in_step;
    for (auto& [ticket, s] : sequences_) {
      if (std::exchange(s.in_step, false)) {
        in_step.push_back(ticket);
      }
    }
    for (auto ticket : in_step) {
      give_up(ctx, ticket, wire::FailReason::ENGINE, "the engine failed: " + result.error,
              ctx.transport().self().node);
    }
    return;
  }
  for (const auto& slice : result.slices) {
    auto& s = sequences_.at(slice.sequence);
    s.in_step = false;
    if (s.cancelled) {
      ledger_.ended(s.origin.router, s.origin.key);
      end_sequence(slice.sequence);
    } else {
      on_token(ctx, slice.sequence, s, slice);
    }
  }
}

void decoder_core::on_token(context& ctx, std::uint64_t ticket, sequence& s,
                            const gpu::slice_result& slice) {
  const auto token = *slice.token;
  const auto position = s.generated + s.tokens_done;
  ++s.tokens_done;
  ++tokens_;
  s.last_token = token;
  const auto finish = engine_.is_end_token(token)         ? wire::FinishReason::EOS
                      : s.tokens_done >= s.gen.tokens_max ? wire::FinishReason::LENGTH
                                                          : wire::FinishReason::NONE;
  if (auto gateway = gateway_of(s.origin.key)) {
    send(ctx, gateway->session,
         make_tokens(s.origin.key, position, {&token, 1}, finish, 0,
                     s.record ? std::span(slice.choices) : std::span<const std::uint16_t>()));
  }
  if (finish != wire::FinishReason::NONE) {
    ledger_.ended(s.origin.router, s.origin.key);
    end_sequence(ticket);
  }
}

void decoder_core::abandon(context& ctx, const task_origin& origin, const kv_ref& kv) {
  const auto peer = peers_.find(kv.node);
  if (peer && peer->id.incarnation == kv.incarnation) {
    send(ctx, peer->session, make_release(origin.key, kv.lease, true));
  }
}

void decoder_core::give_up(context& ctx, std::uint64_t ticket, wire::FailReason reason,
                           const std::string& detail, const std::string& suspect,
                           std::uint32_t retry_after_ms) {
  auto& s = sequences_.at(ticket);
  if (!s.cancelled) {
    fail(ctx, s.origin, reason, detail, suspect, retry_after_ms);
  } else {
    ledger_.ended(s.origin.router, s.origin.key);
  }
  if (s.state == phase::pulling && s.prefill != 0) {
    s.cancelled = true;  // The read still writes into the blocks: get_done ends it.
    return;
  }
  if (s.state != phase::decoding) {
    abandon(ctx, s.origin, s.kv);
  }
  end_sequence(ticket);
}

template <class Predicate>
void decoder_core::end_sequences(context& ctx, Predicate gone) {
  std::vector<std::uint64_t> now;
  for (auto& [ticket, s] : sequences_) {
    if (s.cancelled || !gone(s.origin)) {
      continue;
    }
    s.cancelled = true;
    if (!s.in_step && s.state != phase::pulling) {
      now.push_back(ticket);
    }
  }
  for (auto ticket : now) {
    auto& s = sequences_.at(ticket);
    ledger_.ended(s.origin.router, s.origin.key);
    if (s.state != phase::decoding) {
      abandon(ctx, s.origin, s.kv);
    }
    end_sequence(ticket);
  }
}

void decoder_core::on_cancel(context& ctx, const attempt_key& up_to) {
  end_sequences(ctx, [&](const task_origin& o) {
    return o.key.request == up_to.request && o.key.number <= up_to.number;
  });
}

void decoder_core::on_gateway_lost(context& ctx, std::uint64_t incarnation) {
  end_sequences(ctx, [&](const task_origin& o) { return o.key.request.gateway == incarnation; });
}

void decoder_core::on_worker_lost(context& ctx, const peer_ptr& peer) {
  // A pull in flight ends through get_done; those that wait for it to begin or for Released end
  // here.
  std::vector<std::uint64_t> waiting;
  for (const auto& [ticket, s] : sequences_) {
    const bool depends = (s.state == phase::releasing && s.prefill == peer->session) ||
                         (s.state == phase::queued && s.kv.incarnation == peer->id.incarnation);
    if (depends && !s.cancelled) {
      waiting.push_back(ticket);
    }
  }
  for (auto ticket : waiting) {
    give_up(ctx, ticket, wire::FailReason::PEER_LOST, peer->id.node + " went away during the pull",
            peer->id.node);
  }
}

void decoder_core::end_sequence(std::uint64_t ticket) {
  auto found = sequences_.find(ticket);
  pool_.unpin(found->second.blocks);
  sequences_.erase(found);
  ledger_.touch();
}

std::size_t decoder_core::count(phase state) const {
  return static_cast<std::size_t>(
      std::count_if(sequences_.begin(), sequences_.end(),
                    [&](const auto& e) { return e.second.state == state; }));
}

void decoder_core::fill(wire::QueueDepth::Builder depth) const {
  const auto waiting = count(phase::queued);
  depth.setWaiting(static_cast<std::uint32_t>(waiting));
  depth.setRunning(static_cast<std::uint32_t>(sequences_.size() - waiting));
  depth.setFreeBlocks(pool_.available());
  depth.setTotalBlocks(pool_.block_count());
  depth.setSlot(slot_);
  depth.setStepUs(step_us_);
  depth.setBatch(batch_);
  depth.setDistinctExperts(distinct_experts_);
  depth.setLayers(engine_.geometry().layers);
}

named_counts decoder_core::counts() const {
  return {{"in_flight", static_cast<std::int64_t>(sequences_.size())},
          {"waiting", static_cast<std::int64_t>(count(phase::queued))},
          {"pulling", static_cast<std::int64_t>(count(phase::pulling) + count(phase::releasing))},
          {"running", static_cast<std::int64_t>(count(phase::decoding))},
          {"blocks_total", pool_.block_count()},
          {"blocks_free", pool_.free_count()},
          {"blocks_cached", pool_.cached_count()},
          {"blocks_pinned", pool_.pinned_count()},
          {"tasks_total", tasks_},
          {"steps_total", steps_},
          {"tokens_total", tokens_},
          {"sequence_steps_total", sequence_steps_},
          {"sequence_experts_total", static_cast<std::int64_t>(sequence_experts_)},
          {"pulled_bytes_total", pulled_bytes_},
          {"pulls_failed_total", pulls_failed_},
          {"engine_errors_total", engine_errors_}};
}

}  // namespace eldr::actors
