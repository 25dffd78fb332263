#include "gpu/threaded_engine.hpp"

#include <gmock/gmock.h>

#include <future>
#include <stdexcept>

#include "gpu/hash_runner.hpp"
#include "kv_memory.hpp"

namespace eldr::gpu {
namespace {

step_batch one_token(std::uint64_t sequence, token_id token) {
  step_batch batch;
  batch.slices.resize(1);
  batch.slices[0].sequence = sequence;
  batch.slices[0].tokens = {token};
  batch.slices[0].blocks = {0};
  batch.slices[0].sample = sampling{};
  return batch;
}

/// Throws on token 7; otherwise a hash runner.
class throwing_runner final : public model_runner {
 public:
  const model_geometry& geometry() const noexcept override { return inner_->geometry(); }
  const kv_layout& layout() const noexcept override { return inner_->layout(); }
  std::uint64_t fingerprint() const noexcept override { return inner_->fingerprint(); }
  std::string backend() const override { return inner_->backend(); }
  bool is_end_token(token_id token) const noexcept override { return inner_->is_end_token(token); }
  step_result run(const step_batch& batch, const engine_memory& memory) override {
    if (batch.slices.at(0).tokens.at(0) == 7) {
      throw std::runtime_error("seven");
    }
    return inner_->run(batch, memory);
  }

 private:
  std::unique_ptr<model_runner> inner_ = make_hash_runner();
};

TEST(threaded_engine, runs_steps_in_order_on_its_own_thread) {
  const auto shape = make_hash_runner();
  test::kv_memory memory(shape->layout(), shape->geometry(), 1);
  threaded_engine engine(make_hash_runner(), memory.view());
  EXPECT_EQ(engine.fingerprint(), shape->fingerprint());
  EXPECT_EQ(engine.geometry(), shape->geometry());
  std::vector<std::uint64_t> order;  // Touched by the engine's thread only until `last` is set.
  std::promise<std::thread::id> last;
  for (std::uint64_t i = 0; i < 100; ++i) {
    engine.submit(one_token(i, static_cast<token_id>(i)), [&, i](step_result result) {
      ASSERT_EQ(result.error, "");
      order.push_back(result.slices.at(0).sequence);
      EXPECT_EQ(*result.slices[0].token,
                hash_model_tokens(std::vector{static_cast<token_id>(i)}, {}, 1)[0]);
      if (i == 99) {
        last.set_value(std::this_thread::get_id());
      }
    });
  }
  EXPECT_NE(last.get_future().get(), std::this_thread::get_id());
  std::vector<std::uint64_t> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(threaded_engine, turns_exceptions_into_errors_and_goes_on) {
  const auto shape = make_hash_runner();
  test::kv_memory memory(shape->layout(), shape->geometry(), 1);
  threaded_engine engine(std::make_unique<throwing_runner>(), memory.view());
  std::promise<std::string> failed;
  std::promise<std::string> fine;
  engine.submit(one_token(0, 7),
                [&](const step_result& result) { failed.set_value(result.error); });
  engine.submit(one_token(0, 8), [&](const step_result& result) { fine.set_value(result.error); });
  EXPECT_EQ(failed.get_future().get(), "seven");
  EXPECT_EQ(fine.get_future().get(), "");
}

TEST(threaded_engine, drops_queued_steps_when_destroyed) {
  const auto shape = make_hash_runner();
  test::kv_memory memory(shape->layout(), shape->geometry(), 1);
  const auto alive = std::make_shared<int>(0);
  std::promise<void> started;
  std::promise<void> go_on;
  int calls = 0;
  {
    threaded_engine engine(make_hash_runner(), memory.view());
    engine.submit(one_token(0, 1), [&](const step_result&) {
      started.set_value();
      go_on.get_future().wait();
      ++calls;
    });
    started.get_future().wait();
    for (int i = 0; i < 10; ++i) {
      engine.submit(one_token(0, 1), [&calls, alive](const step_result&) { ++calls; });
    }
    EXPECT_EQ(alive.use_count(), 11);
    go_on.set_value();
  }
  EXPECT_EQ(alive.use_count(), 1);
  EXPECT_GE(calls, 1);
  EXPECT_LE(calls, 11);
}

}  // namespace
}  // namespace eldr::gpu
