/// What is left behind: nothing, after mixed load, clients that go away, and a stop.

#include <gtest/gtest.h>
#include <signal.h>

#include <random>

#include "tests/integration/processes.hpp"

namespace eldr::testing {
namespace {

TEST(rest, is_reached_after_mixed_requests_and_cancelled_clients) {
  running_cluster cluster;
  const auto prompts = some_prompts(50);
  std::mt19937_64 rng(7);
  std::size_t sent = 0;
  while (sent < 200) {
    // A client that sends a few requests, cancels some, reads a little, and leaves.
    cluster::client client(cluster.manifest());
    client.attach(cluster.manifest().require("gateway-1"));
    std::vector<std::uint64_t> numbers;
    for (std::size_t i = 0; i < 20; ++i, ++sent) {
      cluster::completion_request r;
      r.text = prompts[rng() % prompts.size()];
      r.gen.tokens_max = static_cast<std::uint32_t>(1 + rng() % 40);
      r.gen.sampling.temperature = rng() % 2 == 0 ? 0.0F : 0.9F;
      numbers.push_back(client.submit("gateway-1", r));
    }
    for (const auto number : numbers) {
      if (rng() % 3 == 0) {
        client.cancel("gateway-1", number);
      }
    }
    const auto read = rng() % 200;
    for (std::size_t i = 0; i < read; ++i) {
      if (!client.next(std::chrono::milliseconds(50))) {
        break;
      }
    }
  }
  EXPECT_EQ(cluster.unrest(), "");
  const auto nodes = cluster.status();
  const auto& gateway = nodes.at("gateway-1").at("counts");
  EXPECT_EQ(gateway.at("accepted_total"), 200);
  EXPECT_EQ(gateway.at("finished_total").get<int>() + gateway.at("cancelled_total").get<int>(),
            200);
  EXPECT_GT(gateway.at("cancelled_total").get<int>(), 20);
  EXPECT_GT(gateway.at("finished_total").get<int>(), 20);
}

TEST(rest, nothing_runs_after_a_stop) {
  running_cluster cluster({1, 1, 1, 1, "jsq", ""});
  EXPECT_NE(cluster.node_pid("decode-1"), 0);
  EXPECT_EQ(cluster.stop(), 0) << cluster.log();
  for (const auto& node : cluster.manifest().nodes) {
    EXPECT_EQ(cluster.node_pid(node.name), 0) << node.name;
  }
  EXPECT_NE(cluster.log().find("the cluster has stopped"), std::string::npos);
}

TEST(rest, down_lets_the_cluster_end) {
  running_cluster cluster({1, 1, 1, 1, "jsq", ""});
  const auto down = run_eldr({"down", "--manifest", cluster.manifest_path().string()});
  EXPECT_EQ(down.code, 0) << down.err;
  EXPECT_NE(down.out.find("4 nodes have ended"), std::string::npos) << down.out;
  const auto again = run_eldr({"down", "--manifest", cluster.manifest_path().string()});
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("not running"), std::string::npos) << again.err;
}

TEST(rest, a_stop_lets_requests_in_flight_finish) {
  running_cluster cluster({1, 1, 1, 2, "jsq", ""});
  cluster::client client(cluster.manifest());
  client.attach(cluster.manifest().require("gateway-1"));
  cluster::completion_request r;
  r.text = some_prompts(1)[0];
  r.gen.tokens_max = 600;
  r.gen.sampling = {3, 1.0F, 0, 1.0F};
  r.has_seed = true;
  client.submit("gateway-1", r);
  ASSERT_TRUE(client.next(std::chrono::seconds(10)));
  const auto down = run_eldr({"down", "--manifest", cluster.manifest_path().string()});
  EXPECT_EQ(down.code, 0) << down.err;
  wire::FinishReason finish = wire::FinishReason::NONE;
  std::string error;
  while (auto event = client.next(std::chrono::seconds(1))) {
    if (const auto* piece = std::get_if<cluster::completion_piece>(&*event)) {
      finish = piece->finish;
      error = piece->error;
    }
  }
  EXPECT_TRUE(finish == wire::FinishReason::EOS || finish == wire::FinishReason::LENGTH) << error;
}

}  // namespace
}  // namespace eldr::testing
