#include "actors/request/gateway.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "actor_bench.hpp"
#include "test_codec.hpp"
#include "wire_messages.hpp"

namespace eldr::actors::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using enum wire::Message::Which;

class gateway : public testing::Test {
 protected:
  void start() {
    bench.run(std::make_unique<gateway_core>(limits, std::make_shared<test_codec>()));
    client = bench.up("client-1", "client");
    router = bench.up("router-1", "router");
  }
  void ask(std::uint64_t name, const peer_ptr& from) {
    bench.receive(from, make_generate({.client_request = name, .text = "hi"}));
  }
  /// The mail of the n-th request that was started.
  captured_mailbox& mail(std::size_t n) { return *bench.ctx.spawned.at(n).mail; }
  /// Runs the n-th request's start, and looks at what it submits.
  wire::Submit::Reader submitted(std::size_t n) {
    bench.ctx.spawned.at(n).code->start(bench.ctx);
    return bench.take_one(SUBMIT).root().getSubmit();
  }
  void expect_refused(const generate_fields& f, wire::FailReason reason, const std::string& why) {
    bench.receive(client, make_generate(f));
    const auto& m = bench.take_one(GENERATED);
    EXPECT_EQ(m.session, client->session);
    const auto g = m.root().getGenerated();
    EXPECT_EQ(g.getClientRequest(), f.client_request);
    EXPECT_EQ(g.getFinish(), wire::FinishReason::ERROR);
    EXPECT_EQ(g.getFailReason(), reason);
    EXPECT_THAT(read(g.getError()), HasSubstr(why));
  }
  attempt_key key(std::uint64_t counter, std::uint32_t number = 1) const {
    return {{bench.ctx.net.self().incarnation, counter}, number};
  }

  settings limits;
  actor_bench bench{{"gateway-1", "gateway", 80, 0, 0, {}}};
  peer_ptr client;
  peer_ptr router;
};

TEST_F(gateway, starts_a_request_for_what_a_client_asks) {
  start();
  bench.receive(
      client, make_generate({.client_request = 9, .text = "hey", .gen = {7, {77, 0.5F, 3, 0.9F}}}));
  ASSERT_THAT(bench.ctx.spawned, SizeIs(1));
  EXPECT_EQ(bench.ctx.spawned[0].name, "request-1");
  EXPECT_EQ(bench.count("in_flight"), 1);
  const auto submit = submitted(0);
  EXPECT_EQ(read(submit.getAttempt()), key(1));
  EXPECT_THAT(read(submit.getTokens()), ElementsAre('h', 'e', 'y'));
  EXPECT_EQ(read(submit.getSampling()).tokens_max, 7U);
  EXPECT_EQ(read(submit.getSampling()).sampling.seed, 77U);
}

TEST_F(gateway, takes_token_ids_as_they_are) {
  start();
  bench.receive(client, make_generate({.ids = {5, 250, 0}}));
  EXPECT_THAT(read(submitted(0).getTokens()), ElementsAre(5, 250, 0));
}

TEST_F(gateway, draws_a_seed_for_each_request_that_has_none) {
  start();
  for (std::uint64_t name = 1; name <= 2; ++name) {
    bench.receive(client, make_generate({.client_request = name, .text = "a", .has_seed = false}));
  }
  EXPECT_NE(read(submitted(0).getSampling()).sampling.seed,
            read(submitted(1).getSampling()).sampling.seed);
}

TEST_F(gateway, an_answer_ends_where_the_context_does) {
  start();
  bench.receive(client, make_generate({.ids = token_ids(30, 1), .gen = {100, {}}}));
  EXPECT_EQ(read(submitted(0).getSampling()).tokens_max, 2U);
}

TEST_F(gateway, refuses_prompts_that_make_no_sense) {
  start();
  expect_refused({}, wire::FailReason::INVALID, "empty");
  expect_refused({.ids = {5, 251}}, wire::FailReason::INVALID, "vocabulary");
  expect_refused({.ids = token_ids(32, 1)}, wire::FailReason::TOO_LARGE, "context");
  EXPECT_THAT(bench.ctx.spawned, IsEmpty());
  EXPECT_EQ(bench.count("refused_total"), 3);
}

TEST_F(gateway, refuses_sampling_that_no_engine_could_run) {
  start();
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  const auto with = [](float temperature, float top_p) {
    return generation{8, {1, temperature, 0, top_p}};
  };
  for (const auto& gen : {with(-1, 1), with(infinity, 1), with(std::nanf(""), 1), with(0, 0),
                          with(0, 1.5F), with(0, -1), with(0, std::nanf("")), generation{0, {}}}) {
    expect_refused({.text = "a", .gen = gen}, wire::FailReason::INVALID, "sampling");
  }
  EXPECT_THAT(bench.ctx.spawned, IsEmpty());
}

TEST_F(gateway, refuses_more_than_requests_max_with_a_hint) {
  limits.requests_max = 2;
  start();
  ask(1, client);
  ask(2, client);
  bench.receive(client, make_generate({.client_request = 3, .text = "hi"}));
  const auto g = bench.take_one(GENERATED).root().getGenerated();
  EXPECT_EQ(g.getFailReason(), wire::FailReason::OVERLOADED);
  EXPECT_THAT(read(g.getError()), HasSubstr("limits.requests_max"));
  EXPECT_GT(g.getRetryAfterMs(), 0U);
}

TEST_F(gateway, refuses_a_name_in_use_until_its_request_has_ended) {
  start();
  ask(1, client);
  expect_refused({.client_request = 1, .text = "hi"}, wire::FailReason::INVALID, "in use");
  const auto other = bench.up("client-2", "client");
  ask(1, other);
  EXPECT_THAT(bench.ctx.spawned, SizeIs(2)) << "another client's names are its own";
  bench.put(request_ended{1, wire::FinishReason::EOS, 1, 5});
  ask(1, client);
  EXPECT_THAT(bench.ctx.spawned, SizeIs(3));
}

TEST_F(gateway, refuses_everything_while_draining) {
  start();
  ask(1, client);
  bench.put(drain{});
  expect_refused({.client_request = 2, .text = "hi"}, wire::FailReason::DRAINING, "another");
  EXPECT_EQ(bench.count("in_flight"), 1) << "what runs goes on";
}

TEST_F(gateway, brings_frames_to_their_request) {
  start();
  ask(1, client);
  ask(2, client);
  const auto decode = bench.up("decode-1", "decode");
  bench.receive(decode, make_tokens(key(2), 0, {}, wire::FinishReason::NONE, 0));
  bench.receive(router, make_placed(key(2), wire::Phase::PREFILL, decode->id));
  bench.receive(router, make_failed(key(1), {}));
  EXPECT_EQ(mail(0).count<incoming>(), 1U);
  EXPECT_EQ(mail(1).count<incoming>(), 2U);
  EXPECT_THAT(bench.take(CANCEL), IsEmpty());
}

TEST_F(gateway, cancels_work_for_requests_that_do_not_live_at_whoever_does_it) {
  start();
  const auto prefill = bench.up("prefill-1", "prefill");
  const auto decode = bench.up("decode-1", "decode");
  const auto expect_cancel = [&](const peer_ptr& at, const attempt_key& k, wire::ActorKind actor) {
    const auto& m = bench.take_one(CANCEL);
    EXPECT_EQ(m.session, at->session);
    EXPECT_EQ(m.root().getTo(), actor);
    EXPECT_EQ(read(m.root().getCancel().getAttempt()), k);
  };
  bench.receive(prefill, make_tokens(key(1), 0, {}, wire::FinishReason::NONE, 0));
  expect_cancel(prefill, key(1), wire::ActorKind::PREFILL);
  bench.receive(decode, make_tokens(key(1, 2), 0, {}, wire::FinishReason::NONE, 0));
  expect_cancel(decode, key(1, 2), wire::ActorKind::DECODER);
  ask(1, client);
  const attempt_key before_restart{{79, 1}, 1};
  bench.receive(router, make_placed(before_restart, wire::Phase::PREFILL, prefill->id));
  expect_cancel(router, before_restart, wire::ActorKind::ROUTER);
  EXPECT_EQ(mail(0).count<incoming>(), 0U) << "same count, another incarnation";
}

TEST_F(gateway, stops_what_its_client_aborts) {
  start();
  ask(1, client);
  ask(2, client);
  const auto other = bench.up("client-2", "client");
  bench.receive(other, make_abort(1));
  bench.receive(client, make_abort(99));
  EXPECT_EQ(mail(0).count<stop_request>(), 0U);
  bench.receive(client, make_abort(2));
  EXPECT_EQ(mail(0).count<stop_request>(), 0U);
  EXPECT_EQ(mail(1).count<stop_request>(), 1U);
}

TEST_F(gateway, stops_all_requests_of_a_client_that_went_away) {
  start();
  const auto other = bench.up("client-2", "client");
  ask(1, client);
  ask(2, client);
  ask(1, other);
  bench.down(client);
  EXPECT_EQ(mail(0).count<stop_request>(), 1U);
  EXPECT_EQ(mail(1).count<stop_request>(), 1U);
  EXPECT_EQ(mail(2).count<stop_request>(), 0U);
  bench.put(request_ended{1, wire::FinishReason::CANCELLED, 1, 0});
  bench.put(request_ended{2, wire::FinishReason::CANCELLED, 1, 0});
  EXPECT_EQ(bench.count("in_flight"), 1);
}

TEST_F(gateway, tells_live_requests_of_sessions) {
  start();
  ask(1, client);
  const auto decode = bench.up("decode-1", "decode");
  bench.down(decode);
  EXPECT_EQ(mail(0).count<peer_up>(), 1U);
  EXPECT_EQ(mail(0).count<peer_down>(), 1U);
}

TEST_F(gateway, counts_how_requests_ended) {
  start();
  for (std::uint64_t name = 1; name <= 4; ++name) {
    ask(name, client);
  }
  bench.put(request_ended{1, wire::FinishReason::EOS, 1, 5});
  bench.put(request_ended{2, wire::FinishReason::LENGTH, 3, 8});
  bench.put(request_ended{3, wire::FinishReason::ERROR, 4, 0});
  bench.put(request_ended{4, wire::FinishReason::CANCELLED, 1, 2});
  bench.put(request_ended{4, wire::FinishReason::CANCELLED, 1, 2});  // Not twice.
  EXPECT_EQ(bench.count("in_flight"), 0);
  EXPECT_EQ(bench.count("accepted_total"), 4);
  EXPECT_EQ(bench.count("finished_total"), 2);
  EXPECT_EQ(bench.count("failed_total"), 1);
  EXPECT_EQ(bench.count("cancelled_total"), 1);
  EXPECT_EQ(bench.count("retries_total"), 5);
  EXPECT_EQ(bench.count("tokens_total"), 15);
}

TEST_F(gateway, is_ready_while_a_settled_router_is_there) {
  start();
  EXPECT_EQ(bench.count("ready"), 0);
  bench.receive(router, make_view(false));
  EXPECT_EQ(bench.count("ready"), 0);
  bench.receive(router, make_view(true));
  EXPECT_EQ(bench.count("ready"), 1);
  bench.down(router);
  EXPECT_EQ(bench.count("ready"), 0);
}

}  // namespace
}  // namespace eldr::actors::test
