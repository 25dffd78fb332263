#pragma once
/// A decode worker whose pulls and steps end when the test says so, and a prefill worker's memory
/// to pull from.

#include <gmock/gmock.h>

#include <cstring>
#include <numeric>

#include "actor_bench.hpp"
#include "actors/decoder/decoder.hpp"
#include "manual_engine.hpp"
#include "wire_messages.hpp"

namespace eldr::actors::test {

class decoder_bench : public ::testing::Test {
 protected:
  static constexpr std::uint32_t block_count = 12;

  void start() {
    bench.run(std::make_unique<decoder_core>(limits, engine, engine.kv(), block_count, 2));
    gateway = bench.up("gateway-1", "gateway");
    router = bench.up("router-1", "router");
    prefill = bench.up("prefill-1", "prefill");
    bench.advance_ms(2);
    bench.take_kinds();
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
  /// A prompt whose answer has at least `tokens` tokens before an end token.
  static token_ids long_answer(std::uint32_t n, std::uint32_t tokens, std::uint32_t salt = 0) {
    while (true) {
      auto prompt = prompt_of(n, salt++);
      const auto answer = gpu::hash_model_tokens(prompt, {}, tokens, small_blocks());
      if (answer.size() == tokens && answer.back() != end_token()) {
        return prompt;
      }
    }
  }
  static token_ids answer_to(const token_ids& prompt, std::uint32_t tokens_max) {
    return gpu::hash_model_tokens(prompt, {}, tokens_max, small_blocks());
  }

  /// Prefills `prompt` in the remote memory and says how a router would hand it over.
  decode_task_fields prefilled(const attempt_key& key, const token_ids& prompt,
                               std::uint32_t tokens_max = 8) {
    gpu::sequence_slice slice;
    slice.tokens = prompt;
    slice.blocks.resize(remote.layout().blocks_for(static_cast<std::uint32_t>(prompt.size())));
    std::iota(slice.blocks.begin(), slice.blocks.end(), remote_used);
    remote_used += static_cast<std::uint32_t>(slice.blocks.size());
    slice.sample = gpu::sampling{};
    gpu::step_batch batch;
    batch.slices.push_back(slice);
    const auto result = remote.run(batch);
    EXPECT_EQ(result.error, "");
    decode_task_fields task;
    task.number = ++task_number;
    task.key = key;
    task.kv = {"prefill-1",  prefill->id.incarnation,
               task_number,  0,
               slice.blocks, static_cast<std::uint32_t>(prompt.size())};
    task.first_token = result.slices.at(0).token.value();
    task.gen = {tokens_max, {}};
    return task;
  }
  void give(const decode_task_fields& task) { bench.receive(router, make_decode_task(task)); }

  /// Ends the oldest pull; a good one moves the bytes.
  void end_get(messages::get_status status = messages::get_status::ok) {
    auto got = std::move(bench.ctx.net.gets.at(0));
    bench.ctx.net.gets.pop_front();
    if (status == messages::get_status::ok) {
      for (const auto& r : got.ranges) {
        std::memcpy(r.local, remote.kv().data() + r.remote_offset, r.length);
      }
    }
    got.done(status);
    bench.pump();
  }
  void answer_release(const decode_task_fields& task, bool ok = true) {
    bench.receive(prefill, make_released(task.key, task.kv.lease, ok));
  }
  /// Task, pull and release: the sequence decodes.
  void start_decoding(const decode_task_fields& task) {
    give(task);
    end_get();
    bench.take(wire::Message::RELEASE);
    answer_release(task);
  }
  void step(const std::string& error = {}) {
    engine.step(error);
    bench.pump();
  }
  void run_all() {
    while (engine.waiting() > 0) {
      step();
    }
  }
  /// The tokens of an attempt sent since the last look, checked to be without gaps from `position`.
  token_ids take_tokens(const attempt_key& key, std::uint32_t position = 0) {
    token_ids out;
    for (const auto* m : bench.take(wire::Message::TOKENS)) {
      EXPECT_EQ(m->session, gateway->session);
      const auto tokens = m->root().getTokens();
      if (read(tokens.getAttempt()) != key) {
        continue;
      }
      EXPECT_EQ(tokens.getPosition(), position + out.size());
      for (auto id : tokens.getIds()) {
        out.push_back(id);
      }
    }
    return out;
  }
  wire::Failed::Reader take_failed() {
    const auto& m = bench.take_one(wire::Message::FAILED);
    EXPECT_EQ(m.session, gateway->session);
    EXPECT_EQ(m.root().getFailed().getPhase(), wire::Phase::DECODE);
    return m.root().getFailed();
  }
  /// The lease of `task` was given back unused, once.
  void expect_abandoned(const decode_task_fields& task) {
    const auto& m = bench.take_one(wire::Message::RELEASE);
    EXPECT_EQ(m.session, prefill->session);
    EXPECT_EQ(read(m.root().getRelease().getAttempt()), task.key);
    EXPECT_EQ(m.root().getRelease().getLease(), task.kv.lease);
    EXPECT_TRUE(m.root().getRelease().getAbandon());
  }
  void expect_at_rest() {
    EXPECT_EQ(bench.count("in_flight"), 0);
    EXPECT_EQ(bench.count("blocks_free"), block_count);
  }
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

  settings limits;
  manual_engine engine{block_count};
  manual_engine remote{64};
  std::uint32_t remote_used = 0;
  actor_bench bench{{"decode-1", "decode", 70, actor_bench::fingerprint, actor_bench::layout, {}}};
  peer_ptr gateway;
  peer_ptr router;
  peer_ptr prefill;
  std::uint64_t task_number = 0;
};

}  // namespace eldr::actors::test
