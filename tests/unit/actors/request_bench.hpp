#pragma once
/// One request with its client, router and workers, whose parts the test plays.

#include <gmock/gmock.h>

#include "actor_bench.hpp"
#include "actors/request/request.hpp"
#include "test_codec.hpp"
#include "wire_messages.hpp"

namespace eldr::actors::test {

class request_bench : public ::testing::Test {
 protected:
  static constexpr std::uint64_t counter = 4;

  /// Opens the sessions and starts the request; `prompt` and `gen` are its.
  void start() {
    client = open("client-1", "client");
    router = open("router-1", "router");
    prefill = open("prefill-1", "prefill");
    decode = open("decode-1", "decode");
    run();
  }
  peer_ptr open(const std::string& node, const std::string& role) {
    auto p = bench.up(node, role);
    peers.up(p);
    return p;
  }
  void run() {
    request_spec spec;
    spec.id = {bench.ctx.net.self().incarnation, counter};
    spec.client = client->session;
    spec.client_request = 33;
    spec.prompt = prompt;
    spec.gen = gen;
    spec.label = "chat";
    spec.arrived_ns = bench.ctx.now_ns();
    spec.peers = peers;
    bench.run(std::make_unique<request_core>(limits, std::move(spec),
                                             std::make_shared<test_codec>(), door));
  }
  attempt_key key(std::uint32_t number = 1) const {
    return {{bench.ctx.net.self().incarnation, counter}, number};
  }

  void place(wire::Phase phase, const peer_ptr& worker, std::uint32_t number = 1) {
    bench.receive(router, make_placed(key(number), phase, worker->id));
  }
  void tokens(const peer_ptr& from, std::uint32_t position, token_ids ids, std::uint32_t number = 1,
              wire::FinishReason finish = wire::FinishReason::NONE) {
    bench.receive(from, make_tokens(key(number), position, ids, finish, 0));
  }
  void fails(wire::FailReason reason, const std::string& suspect = {}, std::uint32_t number = 1) {
    bench.receive(router,
                  make_failed(key(number), {wire::Phase::DECODE, reason, "because", suspect, 70}));
  }
  /// Brings an attempt to the point where its first token, `id`, has come from prefill.
  void prefilled(gpu::token_id id, std::uint32_t position = 0, std::uint32_t number = 1) {
    place(wire::Phase::PREFILL, prefill, number);
    tokens(prefill, position, {id}, number);
  }
  /// ... and the decoder has taken over.
  void decoding(gpu::token_id id, std::uint32_t position = 0, std::uint32_t number = 1) {
    prefilled(id, position, number);
    place(wire::Phase::DECODE, decode, number);
    tokens(decode, position, {id}, number);
  }

  /// The attempt that was submitted since the last look; 0 for none.
  std::uint32_t take_submitted() {
    const auto found = bench.take(wire::Message::SUBMIT);
    EXPECT_LE(found.size(), 1U);
    return found.empty() ? 0 : found[0]->root().getSubmit().getAttempt().getNumber();
  }
  /// Sessions that were told to cancel attempt `number`.
  std::vector<messages::session_id> take_cancelled(std::uint32_t number = 1) {
    std::vector<messages::session_id> out;
    for (const auto* m : bench.take(wire::Message::CANCEL)) {
      EXPECT_EQ(read(m->root().getCancel().getAttempt()), key(number));
      out.push_back(m->session);
    }
    return out;
  }
  wire::Generated::Reader take_last_generated() {
    const auto all = bench.take(wire::Message::GENERATED);
    if (all.empty()) {
      throw std::runtime_error("nothing was sent to the client");
    }
    EXPECT_EQ(all.back()->session, client->session);
    return all.back()->root().getGenerated();
  }
  /// The client got its last message, an error, and the gateway knows.
  void expect_failed(wire::FailReason reason) {
    const auto last = take_last_generated();
    EXPECT_EQ(last.getFinish(), wire::FinishReason::ERROR);
    EXPECT_EQ(last.getFailReason(), reason);
    EXPECT_TRUE(bench.ctx.ended);
    ASSERT_EQ(door->count<request_ended>(), 1U);
    EXPECT_EQ(std::get<request_ended>(door->events.back()).finish, wire::FinishReason::ERROR);
  }

  settings limits;
  actor_bench bench{{"gateway-1", "gateway", 80, 0, 0, {}}};
  std::shared_ptr<captured_mailbox> door = std::make_shared<captured_mailbox>();
  directory peers;
  token_ids prompt{1, 2, 3};
  generation gen{4, {77, 0.5F, 3, 0.9F}};
  peer_ptr client;
  peer_ptr router;
  peer_ptr prefill;
  peer_ptr decode;
};

}  // namespace eldr::actors::test
