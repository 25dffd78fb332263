#pragma once
/// A prefill worker with an engine that runs on demand, the real signature cache, and its peers.

#include <gmock/gmock.h>

#include "actor_bench.hpp"
#include "actors/prefill/prefill.hpp"
#include "actors/signature_cache/signature_cache.hpp"
#include "manual_engine.hpp"
#include "wire_messages.hpp"

namespace eldr::actors::test {

class prefill_bench : public ::testing::Test {
 protected:
  static constexpr std::uint32_t block_count = 12;

  void start() {
    bench.run(std::make_unique<prefill_core>(limits, engine, block_count, 0, sums));
    gateway = bench.up("gateway-1", "gateway");
    router = bench.up("router-1", "router");
    decoder = bench.up("decode-1", "decode");
    bench.advance_ms(2);
    bench.take_kinds();
  }
  void give(const attempt_key& key, token_ids tokens, std::uint32_t tokens_max = 8) {
    bench.receive(router, make_prefill_task({.number = ++task_number,
                                             .key = key,
                                             .tokens = std::move(tokens),
                                             .gen = {tokens_max, {}}}));
  }
  /// One engine step, with all that follows from it but for the sums.
  void step(const std::string& error = {}) {
    engine.step(error);
    bench.pump();
  }
  void answer_sums() {
    signature_cache_core cache(engine.rows(), engine.row_cells());
    while (!sums->events.empty()) {
      auto e = std::move(sums->events.front());
      sums->events.pop_front();
      cache.handle(bench.ctx, e);
    }
    bench.pump();
  }
  /// Runs until nothing is left to do.
  void run_all() {
    while (engine.waiting() > 0 || !sums->events.empty()) {
      if (engine.waiting() > 0) {
        step();
      }
      answer_sums();
    }
  }
  wire::Handoff::Reader take_handoff() {
    const auto& m = bench.take_one(wire::Message::HANDOFF);
    EXPECT_EQ(m.session, router->session);
    return m.root().getHandoff();
  }
  /// Gives a task, runs it, and says what was leased.
  kv_ref leased(const attempt_key& key, token_ids tokens) {
    give(key, std::move(tokens));
    run_all();
    return read(take_handoff().getKv());
  }
  void release(const attempt_key& key, std::uint64_t lease, bool abandon = false) {
    bench.receive(decoder, make_release(key, lease, abandon));
  }
  wire::Failed::Reader take_failed() {
    const auto& m = bench.take_one(wire::Message::FAILED);
    EXPECT_EQ(m.session, gateway->session);
    EXPECT_EQ(m.root().getFailed().getPhase(), wire::Phase::PREFILL);
    return m.root().getFailed();
  }
  /// Every block is free or cached and nothing is counted as under way, here and at the router.
  void expect_at_rest() {
    EXPECT_EQ(bench.count("in_flight"), 0);
    EXPECT_EQ(bench.count("blocks_pinned"), 0);
    EXPECT_EQ(bench.count("blocks_free") + bench.count("blocks_cached"), block_count);
  }
  /// The pairs that were reported as ended since the last look, in order.
  std::vector<attempt_key> take_ended() {
    bench.advance_ms(2);
    std::vector<attempt_key> out;
    for (const auto* m : bench.take(wire::Message::QUEUE_DEPTH)) {
      for (auto key : m->root().getQueueDepth().getEnded()) {
        out.push_back(read(key));
      }
    }
    return out;
  }
  attempt_key key(std::uint64_t counter, std::uint32_t number = 1) const {
    return attempt(gateway, counter, number);
  }

  static token_ids prompt_of(std::uint32_t n, std::uint32_t salt = 0) {
    token_ids prompt(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      prompt[i] = (i * 7 + salt * 13 + 3) % 250;
    }
    return prompt;
  }
  static gpu::token_id first_token_of(const token_ids& prompt, const gpu::sampling& how = {}) {
    return gpu::hash_model_tokens(prompt, how, 1, small_blocks()).at(0);
  }

  settings limits;
  manual_engine engine{block_count};
  std::shared_ptr<captured_mailbox> sums = std::make_shared<captured_mailbox>();
  actor_bench bench{
      {"prefill-1", "prefill", 60, actor_bench::fingerprint, actor_bench::layout, {}}};
  peer_ptr gateway;
  peer_ptr router;
  peer_ptr decoder;
  std::uint64_t task_number = 0;
};

}  // namespace eldr::actors::test
