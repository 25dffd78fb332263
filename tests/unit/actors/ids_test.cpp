#include "actors/common/ids.hpp"

#include <capnp/message.h>
#include <gtest/gtest.h>

#include "actors/common/wire.hpp"

namespace eldr::actors {
namespace {

TEST(ids, an_attempt_survives_the_wire) {
  const attempt_key key{{0xfedcba9876543210, 17}, 4'000'000'000};
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Attempt>();
  write(root, key);
  EXPECT_EQ(read(root.asReader()), key);
}

TEST(ids, order_is_by_gateway_then_counter_then_attempt) {
  const attempt_key first{{1, 9}, 9};
  EXPECT_LT(first, (attempt_key{{2, 1}, 1}));
  EXPECT_LT(first, (attempt_key{{1, 10}, 1}));
  EXPECT_LT(first, (attempt_key{{1, 9}, 10}));
}

TEST(ids, logs_show_counter_and_attempt) {
  EXPECT_EQ(to_string(attempt_key{{99, 17}, 2}), "r17.2");
}

TEST(wire, a_kv_reference_survives_the_wire) {
  const kv_ref ref{"prefill-1", 77, 5, 1, {3, 1, 4, 1'000'000}, 61};
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::KvRef>();
  write(root, ref);
  const auto back = read(root.asReader());
  EXPECT_EQ(back.node, ref.node);
  EXPECT_EQ(back.incarnation, ref.incarnation);
  EXPECT_EQ(back.lease, ref.lease);
  EXPECT_EQ(back.region, ref.region);
  EXPECT_EQ(back.blocks, ref.blocks);
  EXPECT_EQ(back.tokens, ref.tokens);
}

TEST(wire, sampling_survives_the_wire) {
  const generation gen{12, {0xffffffffffffffff, 0.75F, 40, 0.9F}};
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Sampling>();
  write(root, gen);
  const auto back = read(root.asReader());
  EXPECT_EQ(back.tokens_max, gen.tokens_max);
  EXPECT_EQ(back.sampling.seed, gen.sampling.seed);
  EXPECT_EQ(back.sampling.temperature, gen.sampling.temperature);
  EXPECT_EQ(back.sampling.top_k, gen.sampling.top_k);
  EXPECT_EQ(back.sampling.top_p, gen.sampling.top_p);
}

}  // namespace
}  // namespace eldr::actors
