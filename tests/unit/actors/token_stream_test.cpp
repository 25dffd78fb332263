#include "actors/request/token_stream.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

namespace eldr::actors {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;
using verdict = token_stream::verdict;

constexpr gpu::token_id end_token = 250;

token_stream make_stream(std::uint32_t tokens_max) {
  return {{1, 2, 3}, {tokens_max, {}}, [](gpu::token_id id) { return id == end_token; }};
}

struct taken {
  verdict said;
  std::vector<gpu::token_id> fresh;
};
taken take(token_stream& stream, std::uint32_t position, std::vector<gpu::token_id> ids) {
  taken out{};
  out.said = stream.take(position, ids, out.fresh);
  return out;
}

TEST(token_stream, delivers_new_tokens_in_order) {
  auto stream = make_stream(10);
  EXPECT_EQ(take(stream, 0, {11}).said, verdict::fresh);
  EXPECT_THAT(take(stream, 1, {12, 13}).fresh, ElementsAre(12, 13));
  EXPECT_EQ(stream.delivered(), 3U);
  EXPECT_EQ(stream.prompt_tokens(), 3U);
  EXPECT_THAT(stream.tokens(), ElementsAre(1, 2, 3, 11, 12, 13));
  EXPECT_EQ(stream.finished(), wire::FinishReason::NONE);
}

TEST(token_stream, ignores_what_was_delivered_before) {
  auto stream = make_stream(10);
  take(stream, 0, {11, 12});
  const auto repeat = take(stream, 0, {11, 12});
  EXPECT_EQ(repeat.said, verdict::repeat);
  EXPECT_THAT(repeat.fresh, IsEmpty());
  const auto overlap = take(stream, 1, {12, 13});
  EXPECT_EQ(overlap.said, verdict::fresh);
  EXPECT_THAT(overlap.fresh, ElementsAre(13));
  EXPECT_EQ(take(stream, 3, {}).said, verdict::repeat) << "an empty message says nothing";
}

TEST(token_stream, a_gap_delivers_nothing) {
  auto stream = make_stream(10);
  take(stream, 0, {11});
  const auto gap = take(stream, 2, {13});
  EXPECT_EQ(gap.said, verdict::gap);
  EXPECT_THAT(gap.fresh, IsEmpty());
  EXPECT_EQ(stream.delivered(), 1U);
}

TEST(token_stream, ends_at_the_end_token) {
  auto stream = make_stream(10);
  EXPECT_EQ(take(stream, 0, {11, end_token}).said, verdict::fresh);
  EXPECT_EQ(stream.finished(), wire::FinishReason::EOS);
}

TEST(token_stream, ends_at_its_length) {
  auto stream = make_stream(2);
  take(stream, 0, {11});
  EXPECT_EQ(stream.finished(), wire::FinishReason::NONE);
  take(stream, 1, {12});
  EXPECT_EQ(stream.finished(), wire::FinishReason::LENGTH);
}

TEST(token_stream, an_end_token_as_the_last_one_allowed_is_an_end) {
  auto stream = make_stream(1);
  take(stream, 0, {end_token});
  EXPECT_EQ(stream.finished(), wire::FinishReason::EOS);
}

TEST(token_stream, tokens_past_the_end_are_in_excess_and_not_delivered) {
  auto by_length = make_stream(2);
  const auto long_one = take(by_length, 0, {11, 12, 13});
  EXPECT_EQ(long_one.said, verdict::excess);
  EXPECT_THAT(long_one.fresh, ElementsAre(11, 12));
  auto by_end = make_stream(9);
  EXPECT_EQ(take(by_end, 0, {end_token, 12}).said, verdict::excess);
  EXPECT_EQ(by_end.delivered(), 1U);
}

TEST(token_stream, an_end_token_of_the_prompt_ends_nothing) {
  token_stream stream({1, end_token}, {4, {}}, [](auto id) { return id == end_token; });
  EXPECT_EQ(stream.finished(), wire::FinishReason::NONE);
}

TEST(token_stream, a_resumed_attempt_has_fewer_tokens_to_go_and_the_same_seed) {
  token_stream stream({1}, {5, {77, 0.5F, 4, 0.9F}}, [](auto) { return false; });
  take(stream, 0, {11, 12});
  EXPECT_EQ(stream.remaining().tokens_max, 3U);
  EXPECT_EQ(stream.remaining().sampling.seed, 77U);
  EXPECT_EQ(stream.remaining().sampling.temperature, 0.5F);
  EXPECT_EQ(stream.whole().tokens_max, 5U);
}

/// Pieces of one true sequence, in any order and overlap: what was delivered is always a prefix of
/// it, each token once.
TEST(token_stream, delivers_each_token_once_and_in_order) {
  std::mt19937 rng(6);
  for (int round = 0; round < 100; ++round) {
    std::vector<gpu::token_id> truth(1 + rng() % 40);
    std::generate(truth.begin(), truth.end(), [&] { return 10 + rng() % 200; });
    auto stream = make_stream(static_cast<std::uint32_t>(truth.size()));
    std::vector<gpu::token_id> delivered;
    while (stream.finished() == wire::FinishReason::NONE) {
      const auto from = rng() % truth.size();
      const auto to = from + 1 + rng() % (truth.size() - from);
      const auto got = take(stream, static_cast<std::uint32_t>(from),
                            {truth.begin() + static_cast<std::ptrdiff_t>(from),
                             truth.begin() + static_cast<std::ptrdiff_t>(to)});
      ASSERT_EQ(got.said, from > delivered.size()  ? verdict::gap
                          : to <= delivered.size() ? verdict::repeat
                                                   : verdict::fresh);
      delivered.insert(delivered.end(), got.fresh.begin(), got.fresh.end());
      ASSERT_EQ(stream.delivered(), delivered.size());
    }
    ASSERT_THAT(delivered, ElementsAreArray(truth));
  }
}

}  // namespace
}  // namespace eldr::actors
