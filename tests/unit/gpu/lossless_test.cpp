/// A token's logits depend on the tokens before it and on nothing else, to the bit.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "golden.hpp"
#include "gpu/host_runner.hpp"
#include "gpu/local_generate.hpp"
#include "gpu/signature.hpp"
#include "kv_memory.hpp"

namespace eldr::gpu {
namespace {

using tokens = std::vector<token_id>;
using hashes = std::vector<std::uint64_t>;
using test::kv_memory;

std::unique_ptr<model_runner> runner_with(const host_options& options = {}) {
  return make_host_runner(open_model(""), options);
}

/// A piece of a sequence: tokens [begin, end) of it, in given blocks.
sequence_slice piece(const tokens& all, std::uint32_t begin, std::uint32_t end,
                     const std::vector<block_id>& blocks) {
  sequence_slice slice;
  slice.tokens.assign(all.begin() + begin, all.begin() + end);
  slice.position = begin;
  slice.blocks = blocks;
  return slice;
}

/// Runs a step with logit hashes; fails the test on an error.
std::vector<slice_result> run(model_runner& runner, const engine_memory& memory,
                              std::vector<sequence_slice> slices) {
  step_result result = runner.run({.slices = std::move(slices), .hash_logits = true}, memory);
  EXPECT_EQ(result.error, "");
  return std::move(result.slices);
}

/// Hash of the logits after each token, one token a step.
hashes decode_all(model_runner& runner, const tokens& all) {
  const std::uint32_t count = runner.layout().blocks_for(static_cast<std::uint32_t>(all.size()));
  kv_memory memory(runner.layout(), runner.geometry(), count);
  hashes out;
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    const auto result =
        run(runner, memory.view(), {piece(all, i, i + 1, test::block_range(0, count))});
    out.push_back(result.at(0).logits_hash);
  }
  return out;
}

/// Texts of several languages, one after the other: crosses key tiles and blocks of every size.
tokens long_text(std::size_t count) {
  tokens all;
  for (const test::golden_case& c : test::load_golden()) {
    all.insert(all.end(), c.prompt.begin(), c.prompt.end());
  }
  all.resize(count);
  return all;
}

/// Feeds `all` from `begin` on in chunks and compares each chunk's last logits.
void check_chunks(model_runner& runner, kv_memory& memory, const tokens& all,
                  const hashes& expected, std::uint32_t begin, std::uint32_t chunk) {
  const auto blocks =
      test::block_range(0, runner.layout().blocks_for(static_cast<std::uint32_t>(all.size())));
  for (std::uint32_t at = begin; at < all.size();) {
    const std::uint32_t end = std::min(at + chunk, static_cast<std::uint32_t>(all.size()));
    const auto result = run(runner, memory.view(), {piece(all, at, end, blocks)});
    EXPECT_EQ(result.at(0).logits_hash, expected[end - 1]) << "tokens " << at << " to " << end;
    at = end;
  }
}

class lossless : public ::testing::TestWithParam<kv_dtype> {
 protected:
  host_options options_{.kv = GetParam()};
  std::unique_ptr<model_runner> runner_ = runner_with(options_);
  tokens text_ = long_text(180);
  hashes expected_ = decode_all(*runner_, text_);
};

INSTANTIATE_TEST_SUITE_P(kv, lossless, ::testing::Values(kv_dtype::f32, kv_dtype::bf16),
                         [](const auto& info) {
                           return info.param == kv_dtype::f32 ? "f32" : "bf16";
                         });

TEST_P(lossless, whatever_the_chunk_size) {
  for (const std::uint32_t chunk : {2U, 7U, 16U, 48U, 64U, 100U, 180U}) {
    kv_memory memory(runner_->layout(), runner_->geometry(), 12);
    check_chunks(*runner_, memory, text_, expected_, 0, chunk);
  }
}

TEST_P(lossless, whatever_the_block_size) {
  for (const std::uint32_t block_tokens : {1U, 8U, 64U, 127U}) {
    options_.block_tokens = block_tokens;
    const auto runner = runner_with(options_);
    kv_memory memory(runner->layout(), runner->geometry(), runner->layout().blocks_for(180));
    check_chunks(*runner, memory, text_, expected_, 0, 75);
    EXPECT_EQ(runner->fingerprint(), runner_->fingerprint());
  }
}

TEST_P(lossless, whatever_the_threads) {
  for (const std::uint32_t threads : {2U, 3U}) {
    options_.threads = threads;
    const auto runner = runner_with(options_);
    kv_memory memory(runner->layout(), runner->geometry(), 12);
    check_chunks(*runner, memory, text_, expected_, 0, 180);
    EXPECT_EQ(decode_all(*runner, tokens(text_.begin(), text_.begin() + 3)),
              hashes(expected_.begin(), expected_.begin() + 3));
    EXPECT_EQ(runner->fingerprint(), runner_->fingerprint());
  }
}

TEST_P(lossless, whatever_the_instructions) {
  options_.instructions = isa::portable;
  const auto runner = runner_with(options_);
  kv_memory memory(runner->layout(), runner->geometry(), 12);
  check_chunks(*runner, memory, text_, expected_, 0, 130);
  EXPECT_EQ(runner->fingerprint(), runner_->fingerprint());
}

TEST_P(lossless, whatever_was_found_in_the_prefix_cache) {
  kv_memory first(runner_->layout(), runner_->geometry(), 12);
  check_chunks(*runner_, first, text_, expected_, 0, 64);
  for (const std::uint32_t hit : {16U, 32U, 64U, 112U, 160U, 176U}) {
    // As a pull does: the blocks of the hit come from another pool; the rest is poison.
    kv_memory second(runner_->layout(), runner_->geometry(), 12);
    for (block_id b = 0; b < hit / 16; ++b) {
      first.copy_block(b, second, b);
    }
    check_chunks(*runner_, second, text_, expected_, hit, 48);
  }
}

TEST_P(lossless, whatever_else_is_in_the_batch) {
  struct sequence {
    tokens text;
    hashes expected;
    std::vector<block_id> blocks;
    std::uint32_t done = 0;
  };
  std::mt19937 rng(1);
  const auto golden = test::load_golden();
  for (const std::size_t batch_size : {2U, 5U, 16U}) {
    kv_memory memory(runner_->layout(), runner_->geometry(), 16 * 5);
    std::vector<block_id> ids = test::block_range(0, 16 * 5);
    std::shuffle(ids.begin(), ids.end(), rng);
    std::vector<sequence> all;
    for (std::size_t s = 0; s < batch_size; ++s) {
      sequence next;
      next.text = golden[s % golden.size()].prompt;
      next.expected = decode_all(*runner_, next.text);
      next.blocks.assign(ids.begin() + s * 5, ids.begin() + s * 5 + 5);
      all.push_back(std::move(next));
    }
    // Prefill pieces of any size and single tokens share steps until all is done.
    for (bool busy = true; busy;) {
      std::vector<sequence_slice> slices;
      std::vector<sequence*> of_slice;
      for (sequence& s : all) {
        const auto left = static_cast<std::uint32_t>(s.text.size()) - s.done;
        if (left > 0 && rng() % 4 != 0) {
          const std::uint32_t take = rng() % 2 == 0 ? 1 : 1 + rng() % std::min(left, 40U);
          slices.push_back(piece(s.text, s.done, s.done + take, s.blocks));
          s.done += take;
          of_slice.push_back(&s);
        }
      }
      if (!slices.empty()) {
        const auto results = run(*runner_, memory.view(), std::move(slices));
        for (std::size_t i = 0; i < results.size(); ++i) {
          EXPECT_EQ(results[i].logits_hash, of_slice[i]->expected[of_slice[i]->done - 1]);
        }
      }
      busy = std::any_of(all.begin(), all.end(),
                         [](const sequence& s) { return s.done < s.text.size(); });
    }
  }
}

TEST_P(lossless, when_a_run_is_resumed_from_its_own_tokens) {
  const auto golden = test::load_golden();
  const sampling greedy{};
  const sampling sampled{.seed = 7, .temperature = 0.8F, .top_k = 50, .top_p = 0.95F};
  for (const sampling& how : {greedy, sampled}) {
    for (const std::size_t which : {0U, 5U, 12U}) {
      local_options options;
      options.tokens_max = 24;
      options.hash_logits = true;
      const tokens& prompt = golden[which].prompt;
      const local_result whole = local_generate(*runner_, prompt, how, options);
      for (const std::size_t k : {1U, 5U, 17U}) {
        if (whole.tokens.size() <= k) {
          continue;
        }
        tokens longer = prompt;
        longer.insert(longer.end(), whole.tokens.begin(), whole.tokens.begin() + k);
        options.tokens_max = static_cast<std::uint32_t>(24 - k);
        options.chunk_tokens = 32;
        const local_result rest = local_generate(*runner_, longer, how, options);
        EXPECT_EQ(rest.tokens, tokens(whole.tokens.begin() + k, whole.tokens.end()));
        EXPECT_EQ(rest.logits_hashes,
                  hashes(whole.logits_hashes.begin() + k, whole.logits_hashes.end()));
      }
    }
  }
}

TEST(lossless_kv, dtype_is_part_of_the_numerics) {
  const auto f32 = runner_with({.kv = kv_dtype::f32});
  const auto bf16 = runner_with({.kv = kv_dtype::bf16});
  EXPECT_NE(f32->fingerprint(), bf16->fingerprint());
  const tokens text = long_text(40);
  EXPECT_NE(decode_all(*f32, text), decode_all(*bf16, text));
}

// --- Signature rows ---------------------------------------------------------------------------

/// Prefills tokens [begin, end) with signature rows; returns the choices.
std::vector<std::uint16_t> prefill(model_runner& runner, kv_memory& memory, const tokens& text,
                                   std::uint32_t begin, std::uint32_t end,
                                   const std::vector<block_id>& blocks) {
  step_batch batch;
  batch.record_choices = true;
  batch.slices.push_back(piece(text, begin, end, blocks));
  batch.slices[0].write_rows = true;
  const step_result result = runner.run(batch, memory.view());
  EXPECT_EQ(result.error, "");
  return result.slices.at(0).choices;
}

TEST(signature_rows, equal_the_recount_when_cold_hit_and_reused) {
  const auto runner = runner_with();
  const model_geometry& g = runner->geometry();
  const auto recount = [&](std::vector<std::uint16_t> head,
                           const std::vector<std::uint16_t>& tail) {
    head.insert(head.end(), tail.begin(), tail.end());
    return count_choices(head, g.layers, g.experts, g.experts_per_token);
  };
  kv_memory memory(runner->layout(), g, 12);
  const tokens text = long_text(150);
  const std::vector<block_id> blocks{3, 9, 0, 7, 11, 2, 5, 4, 1, 10};
  const auto head = prefill(*runner, memory, text, 0, 96, blocks);
  const auto tail = prefill(*runner, memory, text, 96, 150, blocks);
  EXPECT_EQ(sum_rows(memory.rows(), memory.row_cells(), blocks), recount(head, tail));

  // Another text with the same first 96 tokens takes the rows of its hit from the cache.
  tokens other = text;
  std::reverse(other.begin() + 96, other.end());
  const std::vector<block_id> shared{3, 9, 0, 7, 11, 2, 8, 6, 1, 10};  // The last two are reused.
  const auto other_tail = prefill(*runner, memory, other, 96, 150, shared);
  EXPECT_EQ(sum_rows(memory.rows(), memory.row_cells(), shared), recount(head, other_tail));
  EXPECT_NE(other_tail, tail);

  // Decoding leaves rows alone.
  const auto before = std::vector<std::int8_t>(memory.rows().begin(), memory.rows().end());
  run(*runner, memory.view(), {piece(long_text(151), 150, 151, shared)});
  EXPECT_TRUE(std::equal(before.begin(), before.end(), memory.rows().begin()));
}

}  // namespace
}  // namespace eldr::gpu
