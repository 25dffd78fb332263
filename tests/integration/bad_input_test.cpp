/// Bad input: one clear sentence, an exit code other than 0, and nothing left running.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>

#include "tests/integration/processes.hpp"

namespace eldr::testing {
namespace {

/// One line on standard error that begins with "eldr: " and holds `part`.
void expect_sentence(const command_result& said, const std::string& part) {
  EXPECT_EQ(said.code, 1) << said.out << said.err;
  EXPECT_NE(said.err.find(part), std::string::npos) << said.err;
  const auto at = said.err.find("eldr: ");
  ASSERT_NE(at, std::string::npos) << said.err;
  EXPECT_EQ(said.err.find('\n', at), said.err.size() - 1) << "more than one line:\n" << said.err;
}

class bad_input_on_a_cluster : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ =
        std::make_unique<running_cluster>(cluster_shape{1, 1, 1, 1, "jsq", "kv: {blocks: 12}\n"});
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(cluster_->unrest(), "");
    EXPECT_EQ(cluster_->stop(), 0);
    cluster_.reset();
  }
  command_result generate(std::vector<std::string> more) const {
    std::vector<std::string> arguments{"generate", "--manifest",
                                       cluster_->manifest_path().string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_eldr(arguments);
  }
  static std::unique_ptr<running_cluster> cluster_;
};
std::unique_ptr<running_cluster> bad_input_on_a_cluster::cluster_;

TEST_F(bad_input_on_a_cluster, an_empty_prompt) {
  expect_sentence(generate({"--prompt", ""}), "the prompt is empty");
}

TEST_F(bad_input_on_a_cluster, a_prompt_longer_than_the_context) {
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += std::to_string(i) + " ";
  }
  const auto said = generate({"--prompt", text});
  EXPECT_EQ(said.code, 1);
  EXPECT_NE(said.out.find("the model's context of 1024"), std::string::npos)
      << said.out.substr(said.out.size() - 300);
}

TEST_F(bad_input_on_a_cluster, a_prompt_larger_than_the_pool) {
  std::string text;
  for (int i = 0; i < 150; ++i) {
    text += std::to_string(i) + " ";
  }
  const auto said = generate({"--prompt", text});
  EXPECT_EQ(said.code, 1);
  EXPECT_NE(said.out.find("needs more KV blocks than any worker has"), std::string::npos)
      << said.out;
}

TEST_F(bad_input_on_a_cluster, an_unknown_gateway) {
  expect_sentence(generate({"--prompt", "x", "--gateway", "gatewey-1"}),
                  "did you mean 'gateway-1'");
}

TEST_F(bad_input_on_a_cluster, a_node_that_is_no_gateway) {
  expect_sentence(generate({"--prompt", "x", "--gateway", "decode-1"}), "is not a gateway");
}

TEST_F(bad_input_on_a_cluster, a_wrong_token) {
  const scratch folder;
  std::ifstream in(cluster_->manifest_path());
  const std::string yaml{std::istreambuf_iterator<char>(in), {}};
  const auto manifest = folder.file("other.yaml", yaml);
  const auto token = folder.file("cluster.token", std::string(64, 'a') + "\n");
  std::filesystem::permissions(
      token, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const auto said = run_eldr({"generate", "--prompt", "x", "--manifest", manifest.string()});
  expect_sentence(said, "token");
  // The cluster is none the worse for it.
  EXPECT_EQ(generate({"--prompt", "def f(x):", "--max-tokens", "4"}).code, 0);
}

TEST_F(bad_input_on_a_cluster, a_port_in_use) {
  const auto again =
      run_eldr({"node", "--manifest", cluster_->manifest_path().string(), "--name", "decode-1"});
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("in use"), std::string::npos) << again.err;
}

TEST_F(bad_input_on_a_cluster, a_second_up) {
  const auto again = run_eldr({"up", cluster_->manifest_path().string()});
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("in use"), std::string::npos) << again.err;
  EXPECT_NE(cluster_->node_pid("decode-1"), 0);
}

TEST_F(bad_input_on_a_cluster, an_unknown_node) {
  expect_sentence(
      run_eldr({"node", "--manifest", cluster_->manifest_path().string(), "--name", "decode-9"}),
      "did you mean 'decode-1'");
}

TEST(bad_input, a_cluster_that_is_down) {
  const auto ports = free_ports(4);
  const scratch folder;
  const auto manifest =
      folder.file("down.yaml",
                  "nodes:\n  - {name: g, role: gateway, listen: " + std::to_string(ports[0]) +
                      "}\n  - {name: r, role: router, listen: " + std::to_string(ports[1]) +
                      "}\n  - {name: p, role: prefill, listen: " + std::to_string(ports[2]) +
                      "}\n  - {name: d, role: decode, listen: " + std::to_string(ports[3]) + "}\n");
  const auto token = folder.file("cluster.token", std::string(64, 'a') + "\n");
  std::filesystem::permissions(
      token, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  expect_sentence(run_eldr({"generate", "--prompt", "x", "--manifest", manifest.string()}),
                  "is the cluster running");
  const auto status = run_eldr({"status", "--manifest", manifest.string()});
  EXPECT_EQ(status.code, 1);
  EXPECT_NE(status.out.find("absent"), std::string::npos) << status.out;
}

/// `eldr up` with a broken model says which node failed and why, and leaves nothing running.
TEST(bad_input, models_that_cannot_be_loaded) {
  const auto source = std::filesystem::path(ELDR_SOURCE_DIR) / "models/tiny-moe";
  const auto ports = free_ports(4);
  const auto expect_failure = [&](const std::string& what, const std::string& part,
                                  const auto& spoil) {
    const scratch folder;
    std::filesystem::copy(source, folder.path() / "model");
    spoil(folder.path() / "model");
    const auto manifest = folder.file(
        "cluster.yaml",
        "model: model\nnodes:\n  - {name: g, role: gateway, listen: " + std::to_string(ports[0]) +
            "}\n  - {name: r, role: router, listen: " + std::to_string(ports[1]) +
            "}\n  - {name: p, role: prefill, listen: " + std::to_string(ports[2]) +
            "}\n  - {name: d, role: decode, listen: " + std::to_string(ports[3]) + "}\n");
    const auto said = run_eldr({"up", manifest.string()});
    EXPECT_EQ(said.code, 1) << what;
    EXPECT_NE(said.err.find(part), std::string::npos) << what << ": " << said.err;
  };
  expect_failure("missing weights", "model.safetensors",
                 [](const auto& m) { std::filesystem::remove(m / "model.safetensors"); });
  expect_failure("cut weights", "safetensors", [](const auto& m) {
    std::filesystem::resize_file(m / "model.safetensors", 5000);
  });
  expect_failure("another architecture", "llama", [](const auto& m) {
    std::ofstream(m / "config.json")
        << R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})";
  });
  expect_failure("another geometry", "shape", [](const auto& m) {
    std::ifstream in(m / "config.json");
    std::string config{std::istreambuf_iterator<char>(in), {}};
    const std::string from = "\"moe_intermediate_size\": 32";
    config.replace(config.find(from), from.size(), "\"moe_intermediate_size\": 48");
    std::ofstream(m / "config.json") << config;
  });
}

}  // namespace
}  // namespace eldr::testing
