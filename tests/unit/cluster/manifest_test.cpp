#include "cluster/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "cluster/manifest_keys.hpp"
#include "cluster/nearest.hpp"

namespace eldr::cluster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const std::string minimal_nodes =
    "nodes:\n"
    "  - {name: gate, role: gateway, listen: 7400}\n"
    "  - {name: router, role: router, listen: 127.0.0.1:7401}\n"
    "  - {name: prefill, role: prefill, listen: 7410, count: 2}\n"
    "  - {name: decode, role: decode, listen: 10.1.2.3:7420, count: 3}\n";

manifest parse(const std::string& text) {
  return parse_manifest(text, "dir/test.yaml");
}

/// What the manifest is refused with; empty if it is accepted.
std::string fault_of(const std::string& text) {
  try {
    parse(text);
    return {};
  } catch (const manifest_error& e) {
    return e.what();
  }
}

TEST(manifest, minimal_one_gets_defaults_and_expanded_nodes) {
  const manifest m = parse(minimal_nodes);
  EXPECT_EQ(m.timeouts, timeout_options{});
  EXPECT_EQ(m.limits, limit_options{});
  EXPECT_EQ(m.token_path(), "dir/cluster.token");
  EXPECT_FALSE(m.model_path().has_value());
  std::vector<std::string> nodes;
  for (const node_spec& node : m.nodes) {
    nodes.push_back(node.name + "@" + node.address());
  }
  EXPECT_THAT(
      nodes, ElementsAre("gate@127.0.0.1:7400", "router@127.0.0.1:7401", "prefill-1@127.0.0.1:7410",
                         "prefill-2@127.0.0.1:7411", "decode-1@10.1.2.3:7420",
                         "decode-2@10.1.2.3:7421", "decode-3@10.1.2.3:7422"));
  ASSERT_NE(m.find("decode-2"), nullptr);
  EXPECT_EQ(m.find("decode-2")->role, node_role::decode);
  EXPECT_EQ(m.find("decode"), nullptr);
  EXPECT_EQ(m.with_role(node_role::prefill).size(), 2u);
}

TEST(manifest, values_are_read) {
  const manifest m = parse(
      "name: lab.1\nmodel: ../models/big\nlog_level: off\nengine_threads: 4\n"
      "kv: {block_tokens: 32, blocks: 77, dtype: bf16}\n"
      "policy: {name: p2c, seed: 18446744073709551615}\n"
      "limits:\n"
      "transport: {shared_memory: true, spin_us: 0}\n" +
      minimal_nodes + "  - {name: x, role: decode, listen: far.example:1, cores: [3, 0]}\n");
  EXPECT_EQ(m.name, "lab.1");
  EXPECT_EQ(m.model_path(), std::filesystem::path("dir/../models/big"));
  EXPECT_EQ(m.log_level, "off");
  EXPECT_EQ(m.kv, (kv_options{32, 77, gpu::kv_dtype::bf16}));
  EXPECT_EQ(m.policy, (policy_options{"p2c", UINT64_MAX}));
  EXPECT_EQ(m.transport, (transport_options{true, 0}));
  EXPECT_THAT(m.nodes.back().cores, ElementsAre(3u, 0u));
  EXPECT_EQ(m.nodes.back().address(), "far.example:1");
}

TEST(manifest, require_suggests_the_nearest_node) {
  const manifest m = parse(minimal_nodes);
  EXPECT_EQ(m.require("gate").port, 7400);
  try {
    m.require("decod-2");
    FAIL();
  } catch (const manifest_error& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("'decod-2'"), HasSubstr("did you mean 'decode-2'?")));
  }
}

struct bad_manifest {
  const char* why;
  std::string text;
  std::string place;  ///< How the message begins.
  std::string says;   ///< What it contains.
};

void PrintTo(const bad_manifest& bad, std::ostream* out) {
  *out << bad.why;
}

class manifest_faults : public testing::TestWithParam<bad_manifest> {};

TEST_P(manifest_faults, are_one_sentence_with_place_and_remedy) {
  const std::string fault = fault_of(GetParam().text);
  EXPECT_THAT(fault, StartsWith("dir/test.yaml" + GetParam().place));
  EXPECT_THAT(fault, HasSubstr(GetParam().says));
  EXPECT_EQ(fault.find('\n'), std::string::npos);
}

std::string with_node(const std::string& node) {
  return minimal_nodes + "  - {" + node + "}\n";
}

INSTANTIATE_TEST_SUITE_P(
    all, manifest_faults,
    testing::Values(
        bad_manifest{"empty", "", ": ", "is empty"},
        bad_manifest{"only a comment", "# nothing\n", ": ", "is empty"},
        bad_manifest{"not yaml", "nodes: [a, b\n", ":2:1: ", "not valid YAML"},
        bad_manifest{"not a mapping", "- a\n", ":1:1: ", "must be a mapping"},
        bad_manifest{"two documents", minimal_nodes + "---\nname: x\n", ":7:1: ", "one YAML"},
        bad_manifest{"key at the top", "nmae: x\n" + minimal_nodes,
                     ":1:1: ", "'nmae' is not a key of the manifest; did you mean 'name'?"},
        bad_manifest{"key in a section", "timeouts:\n  lease_msec: 5\n" + minimal_nodes,
                     ":2:3: ", "did you mean 'timeouts.lease_ms'?"},
        bad_manifest{"key in the wrong section", "lease_ms: 5\n" + minimal_nodes,
                     ":1:1: ", "did you mean 'timeouts.lease_ms'?"},
        bad_manifest{"dotted key", "kv.blocks: 5\n" + minimal_nodes,
                     ":1:1: ", "write 'blocks' in a section 'kv:'"},
        bad_manifest{"key like no other", "transport: {zzzzzzzzzzzzzzzz: 5}\n" + minimal_nodes,
                     ":1:13: ", "known here are shared_memory, spin_us"},
        bad_manifest{"key of a node", with_node("name: a, role: decode, lisen: 1"),
                     ":6:29: ", "did you mean 'nodes.listen'?"},
        bad_manifest{"key twice", "name: a\nname: b\n" + minimal_nodes, ":2:1: ", "given twice"},
        bad_manifest{"node key twice", with_node("name: a, name: b, role: decode, listen: 1"),
                     ":6:", "given twice"},
        bad_manifest{"text for a number", "engine_threads: many\n" + minimal_nodes,
                     ":1:17: ", "whole number from 1 to 256 threads, but is 'many'"},
        bad_manifest{"number with a tail", "kv: {blocks: 10k}\n" + minimal_nodes,
                     ":1:14: ", "'10k'"},
        bad_manifest{"negative", "kv: {blocks: -1}\n" + minimal_nodes, ":1:14: ", "'-1'"},
        bad_manifest{"list for a number", "kv: {blocks: [1]}\n" + minimal_nodes,
                     ":1:14: ", "a list"},
        bad_manifest{"nothing for a number", "kv: {blocks: }\n" + minimal_nodes, ":1:", "nothing"},
        bad_manifest{"block of 128 tokens", "kv: {block_tokens: 128}\n" + minimal_nodes,
                     ":1:20: ", "from 1 to 127 tokens"},
        bad_manifest{"overflow", "policy: {seed: 18446744073709551616}\n" + minimal_nodes,
                     ":1:16: ", "'policy.seed'"},
        bad_manifest{"short deadline", "timeouts: {health_deadline_ms: 499}\n" + minimal_nodes,
                     ":1:32: ", "from 500"},
        bad_manifest{"flag", "transport: {shared_memory: yes}\n" + minimal_nodes,
                     ":1:28: ", "true or false"},
        bad_manifest{"policy", "policy: {name: jqs}\n" + minimal_nodes,
                     ":1:16: ", "but is 'jqs'; did you mean 'jsq'?"},
        bad_manifest{"dtype", "kv: {dtype: f16}\n" + minimal_nodes,
                     ":1:13: ", "did you mean 'bf16'?"},
        bad_manifest{"role", with_node("name: a, role: decoder, listen: 1"),
                     ":6:21: ", "did you mean 'decode'?"},
        bad_manifest{"section as a word", "kv: 5\n" + minimal_nodes,
                     ":1:5: ", "'kv' must be a mapping"},
        bad_manifest{"nodes as a word", "nodes: 5\n", ":1:8: ", "must be a list"},
        bad_manifest{"node as a word", "nodes: [a]\n", ":1:9: ", "must be a mapping"},
        bad_manifest{"no nodes", "name: a\n", ": ", "no node has the role 'gateway'"},
        bad_manifest{"no decode", minimal_nodes.substr(0, minimal_nodes.find("  - {name: decode")),
                     ":1:1: ", "no node has the role 'decode'"},
        bad_manifest{"no name", with_node("role: decode, listen: 1"), ":6:", "no 'name'"},
        bad_manifest{"no role", with_node("name: a, listen: 1"), ":6:", "no 'role'"},
        bad_manifest{"no address", with_node("name: a, role: decode"), ":6:", "no 'listen'"},
        bad_manifest{"name twice", with_node("name: decode-2, role: decode, listen: 1"),
                     ":6:", "'decode-2' is used twice"},
        bad_manifest{"address twice", with_node("name: a, role: decode, listen: localhost:7411"),
                     ":6:", "nodes 'prefill-2' and 'a' both listen on"},
        bad_manifest{"upper case name", with_node("name: A, role: decode, listen: 1"),
                     ":6:", "cannot name a node"},
        bad_manifest{"long name",
                     with_node("name: a234567890123456789012345678901-3, role: decode, "
                               "listen: 1"),
                     ":6:", "1 to 32"},
        bad_manifest{"client name", with_node("name: client-7, role: decode, listen: 1"),
                     ":6:", "reserved"},
        bad_manifest{"port 0", with_node("name: a, role: decode, listen: 0"), ":6:", "1 to 65535"},
        bad_manifest{"port too high", with_node("name: a, role: decode, listen: a:65536"),
                     ":6:", "1 to 65535"},
        bad_manifest{"no port", with_node("name: a, role: decode, listen: host"),
                     ":6:", "host:port"},
        bad_manifest{"wildcard", with_node("name: a, role: decode, listen: 0.0.0.0:1"),
                     ":6:", "name one interface"},
        bad_manifest{"ipv6", with_node("name: a, role: decode, listen: '[::1]:1'"),
                     ":6:", "IPv4 address or a host name"},
        bad_manifest{"ports run out", with_node("name: a, role: decode, listen: 65534, count: 3"),
                     ":6:", "above 65535"},
        bad_manifest{"count and cores",
                     with_node("name: a, role: decode, listen: 1, count: 2, cores: [1]"),
                     ":6:", "one by one"},
        bad_manifest{"cpu twice", with_node("name: a, role: decode, listen: 1, cores: [1, 1]"),
                     ":6:", "CPU 1 twice"},
        bad_manifest{"no cpus", with_node("name: a, role: decode, listen: 1, cores: []"),
                     ":6:", "but is empty"},
        bad_manifest{"cluster name", "name: 'a b'\n" + minimal_nodes, ":1:1: ", "but is 'a b'"},
        bad_manifest{
            "lease too short",
            "timeouts: {route_ms: 10000, queue_ms: 15000, pull_ms: 5000}\n" + minimal_nodes, ": ",
            "must exceed route_ms + queue_ms + pull_ms = 30000"},
        bad_manifest{"rare heartbeats", "timeouts:\n  heartbeat_ms: 501\n" + minimal_nodes,
                     ":2:3: ", "at most half"},
        bad_manifest{
            "frame above queue",
            "limits: {frame_bytes_max: 2000000, peer_queue_bytes_max: 1000000}\n" + minimal_nodes,
            ":1:36: ", "must hold one frame"}));

TEST(manifest, lease_may_exceed_the_waits_by_one) {
  const std::string waits =
      "timeouts: {route_ms: 10000, queue_ms: 15000, pull_ms: 5000, lease_ms: ";
  EXPECT_EQ(fault_of(waits + "30001}\n" + minimal_nodes), "");
  EXPECT_THAT(fault_of(waits + "30000}\n" + minimal_nodes), StartsWith("dir/test.yaml:1:61: "));
}

TEST(manifest, printed_manifest_parses_to_the_same) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    manifest m = parse(minimal_nodes);
    for (const manifest_key& key : manifest_keys()) {
      if (const auto* n = std::get_if<number_value>(&key.value)) {
        n->at(m) = std::uniform_int_distribution<std::uint32_t>(n->min, n->max)(random);
      } else if (const auto* choice = std::get_if<choice_value>(&key.value)) {
        choice->set(m, choice->words[random() % choice->words.size()]);
      } else if (const auto* flag = std::get_if<flag_value>(&key.value)) {
        flag->at(m) = random() % 2 == 0;
      } else if (const auto* seed = std::get_if<seed_value>(&key.value)) {
        seed->at(m) = random();
      } else if (const auto* real = std::get_if<fraction_value>(&key.value)) {
        real->at(m) = std::uniform_real_distribution<float>(real->min, real->max)(random);
      }
    }
    m.timeouts.heartbeat_ms = 250;
    m.timeouts.lease_ms = 3'600'000;
    m.timeouts.route_ms = m.timeouts.queue_ms = m.timeouts.pull_ms = 10 + round;
    m.limits.peer_queue_bytes_max = 1u << 30;
    m.model = round % 2 == 0 ? "~" : "a: b #c 'd'";
    m.nodes[0].cores = {1, 0};
    EXPECT_EQ(parse(to_yaml(m)), m) << to_yaml(m);
  }
}

TEST(manifest, damaged_text_never_does_more_than_fail) {
  const std::string whole = to_yaml(parse(minimal_nodes));
  std::mt19937_64 random(11);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = whole;
    for (std::uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 20);
          break;
        default:
          text.insert(at, 1, "{}[]:,&*!|>-'\"\n \t%@`#?~\0"[random() % 24]);
      }
    }
    refused += fault_of(text).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 500);
}

TEST(manifest, files_that_cannot_be_read_are_named) {
  for (const char* path : {"/no/such/manifest.yaml", "/"}) {
    try {
      load_manifest(path);
      FAIL() << path;
    } catch (const manifest_error& e) {
      EXPECT_THAT(e.what(), StartsWith(std::string(path) + ": "));
    }
  }
}

TEST(manifest, reference_in_the_documentation_is_current) {
  std::ifstream file(ELDR_SOURCE_DIR "/docs/manifest.md");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(key_reference()))
      << "paste the output of `eldr manifest keys` into docs/manifest.md";
}

TEST(manifest, defaults_lie_within_their_ranges) {
  manifest m;
  for (const manifest_key& key : manifest_keys()) {
    if (const auto* n = std::get_if<number_value>(&key.value)) {
      EXPECT_LE(n->min, n->at(m)) << key.path;
      EXPECT_GE(n->max, n->at(m)) << key.path;
    }
  }
}

TEST(nearest, counts_edits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("jqs", "jsq"), 1u);
  EXPECT_EQ(edit_distance("lease_msec", "lease_ms"), 2u);
}

TEST(nearest, is_a_metric_on_random_words) {
  std::mt19937_64 random(3);
  const auto word = [&] {
    std::string text(random() % 8, 'a');
    for (char& c : text) {
      c = static_cast<char>('a' + random() % 3);
    }
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    const std::string a = word();
    const std::string b = word();
    EXPECT_EQ(edit_distance(a, b), edit_distance(b, a));
    EXPECT_EQ(edit_distance(a, b) == 0, a == b);
    EXPECT_LE(edit_distance(a, b), std::max(a.size(), b.size()));
    EXPECT_LE(edit_distance(a, b + "c"), edit_distance(a, b) + 1);
  }
}

TEST(nearest, suggests_only_what_is_alike) {
  const std::vector<std::string_view> words{"prefill", "decode", "rr"};
  EXPECT_EQ(nearest("decod", words), "decode");
  EXPECT_EQ(nearest("perfill", words), "prefill");
  EXPECT_EQ(nearest("gateway", words), std::nullopt);
  EXPECT_EQ(nearest("xy", words), std::nullopt);
  EXPECT_EQ(nearest(std::string(100'000, 'd'), words), std::nullopt);
  EXPECT_EQ(in_quotes(std::string(3, 'a') + "\n"), "'aaa?'");
  EXPECT_EQ(in_quotes(std::string(100, 'a')).size(), 65u);
}

}  // namespace
}  // namespace eldr::cluster
