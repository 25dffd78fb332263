#include "gpu/local_generate.hpp"

#include <gmock/gmock.h>

#include <stdexcept>

#include "gpu/hash_runner.hpp"

namespace eldr::gpu {
namespace {

using ::testing::HasSubstr;

/// A prompt after which the hash model goes on for more than `count` tokens.
std::vector<token_id> talkative_prompt(std::uint32_t count) {
  for (token_id first = 0;; ++first) {
    const std::vector<token_id> prompt(70, first);
    if (hash_model_tokens(prompt, {}, count + 1).size() > count) {
      return prompt;
    }
  }
}

TEST(local_generate, equals_the_model_whatever_the_chunk) {
  const auto runner = make_hash_runner();
  for (token_id first = 0; first < 20; ++first) {
    const std::vector<token_id> prompt(60, first);
    const sampling how{.seed = first};
    const auto expected = hash_model_tokens(prompt, how, 30);
    for (const std::uint32_t chunk : {1U, 16U, 40U, 256U}) {
      local_options options;
      options.tokens_max = 30;
      options.chunk_tokens = chunk;
      const local_result result = local_generate(*runner, prompt, how, options);
      EXPECT_EQ(result.tokens, expected);
      EXPECT_EQ(result.finish, expected.back() == hash_end_token(runner->geometry())
                                   ? local_finish::end_token
                                   : local_finish::length);
    }
  }
}

TEST(local_generate, records_what_was_asked_for) {
  const auto runner = make_hash_runner();
  const auto prompt = talkative_prompt(9);
  local_options options;
  options.tokens_max = 9;
  options.record_choices = true;
  options.hash_logits = true;
  const local_result result = local_generate(*runner, prompt, {}, options);
  EXPECT_EQ(result.logits_hashes.size(), 9u);
  // The last token was not fed back.
  ASSERT_EQ(result.choices.size(), (70u + 8) * 2 * 2);
  EXPECT_EQ(result.choices[70 * 4], hash_choices(runner->geometry(), result.tokens[0], 0)[0]);
}

TEST(local_generate, ends_at_the_context) {
  const auto runner = make_hash_runner();
  const token_id quiet = talkative_prompt(3)[0];
  for (std::uint32_t length : {510U, 512U}) {
    const std::vector<token_id> prompt(length, quiet);
    const auto expected = hash_model_tokens(prompt, {}, 100);
    EXPECT_LE(expected.size(), 513 - length);
    EXPECT_EQ(local_generate(*runner, prompt, {}).tokens, expected);
  }
}

TEST(local_generate, stops_when_told) {
  const auto runner = make_hash_runner();
  const auto prompt = talkative_prompt(5);
  local_options options;
  std::vector<token_id> seen;
  options.on_token = [&](token_id token) {
    seen.push_back(token);
    return seen.size() < 3;
  };
  const local_result result = local_generate(*runner, prompt, {}, options);
  EXPECT_EQ(result.finish, local_finish::stopped);
  EXPECT_EQ(result.tokens, seen);
  EXPECT_EQ(seen.size(), 3u);
}

TEST(local_generate, generates_nothing_if_so_told) {
  local_options options;
  options.tokens_max = 0;
  const auto runner = make_hash_runner();
  const std::vector<token_id> prompt{1};
  EXPECT_TRUE(local_generate(*runner, prompt, {}, options).tokens.empty());
}

TEST(local_generate, refuses_in_words) {
  const auto runner = make_hash_runner();
  const auto error_of = [&](const std::vector<token_id>& prompt) -> std::string {
    try {
      local_generate(*runner, prompt, {});
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  };
  EXPECT_THAT(error_of({}), HasSubstr("empty"));
  EXPECT_THAT(error_of(std::vector<token_id>(513)), HasSubstr("context is 512"));
  EXPECT_THAT(error_of({300}), HasSubstr("vocabulary"));
}

}  // namespace
}  // namespace eldr::gpu
