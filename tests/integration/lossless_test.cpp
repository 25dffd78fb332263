/// A cluster's tokens equal those of a single process, whatever the policy, the concurrency and the
/// sampling.

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "gpu/host_runner.hpp"
#include "gpu/local_generate.hpp"
#include "gpu/model_files.hpp"
#include "gpu/tokenizer.hpp"
#include "tests/integration/processes.hpp"

namespace eldr::testing {
namespace {

constexpr std::size_t prompt_count = 60;
constexpr std::uint32_t tokens_max = 24;

std::vector<cluster::completion_request> make_requests(bool sampled) {
  std::vector<cluster::completion_request> requests;
  for (const auto& prompt : some_prompts(prompt_count)) {
    cluster::completion_request r;
    r.text = prompt;
    r.gen.tokens_max = tokens_max;
    r.has_seed = true;
    if (sampled) {
      r.gen.sampling = {1000 + requests.size(), 0.8F, 0, 0.95F};
    }
    requests.push_back(std::move(r));
  }
  return requests;
}

/// The reference, computed once for all cases.
const std::vector<std::vector<gpu::token_id>>& reference(bool sampled) {
  static std::map<bool, std::vector<std::vector<gpu::token_id>>> known;
  auto& answers = known[sampled];
  if (answers.empty()) {
    const auto files = gpu::open_model("");
    const gpu::tokenizer tokens(files->tokenizer_json());
    const auto runner = gpu::make_host_runner(files);
    for (const auto& r : make_requests(sampled)) {
      gpu::local_options options;
      options.tokens_max = tokens_max;
      answers.push_back(
          gpu::local_generate(*runner, tokens.encode(r.text), r.gen.sampling, options).tokens);
    }
  }
  return answers;
}

class lossless : public ::testing::TestWithParam<const char*> {};

TEST_P(lossless, under_a_policy) {
  cluster_shape shape;
  shape.policy = GetParam();
  running_cluster cluster(shape);
  cluster::client client(cluster.manifest());
  client.attach(cluster.manifest().require("gateway-1"));
  std::map<std::string, int> decoded;
  for (const bool sampled : {false, true}) {
    for (const std::size_t concurrency : {1, 16}) {
      const auto answers = ask(client, "gateway-1", make_requests(sampled), concurrency);
      for (std::size_t i = 0; i < answers.size(); ++i) {
        ASSERT_EQ(answers[i].last.error, "");
        EXPECT_EQ(answers[i].tokens, reference(sampled)[i])
            << "prompt " << i << (sampled ? ", sampled" : ", greedy") << ", concurrency "
            << concurrency;
        EXPECT_EQ(answers[i].last.attempts, 1u);
        ++decoded[answers[i].last.decode_node];
      }
    }
  }
  EXPECT_GE(decoded.size(), 4u) << "not all decode nodes took part";
  EXPECT_EQ(cluster.unrest(), "");
  EXPECT_EQ(cluster.stop(), 0) << cluster.log();
}

INSTANTIATE_TEST_SUITE_P(policies, lossless, ::testing::Values("rr", "random", "jsq", "p2c"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace eldr::testing
