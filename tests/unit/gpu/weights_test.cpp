#include "gpu/weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/unit/gpu/memory_model.hpp"

namespace {

using eldr::gpu::model_weights;
using eldr::gpu::open_model;
using eldr::gpu::parse_config;
using eldr::gpu::tensor_view;
using eldr::gpu::weight_dtype;
using namespace eldr::gpu::test;
using testing::HasSubstr;
using testing::Not;

model_weights load(const made_tensors& tensors, const nlohmann::json& config = small_config(),
                   std::size_t pad = 0) {
  const auto files = std::make_shared<memory_model>(config.dump(), write_safetensors(tensors, pad));
  return {files, parse_config(files->config_json())};
}

template <typename Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "accepted";
}

class scratch_folder {
 public:
  scratch_folder() : path_(std::filesystem::path(testing::TempDir()) / "eldr-weights-test-XXXXXX") {
    std::string name = path_.string();
    path_ = ::mkdtemp(name.data());
  }
  ~scratch_folder() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(weights, the_embedded_model_is_complete) {
  const auto files = open_model("tiny-moe");
  const model_weights weights(files, parse_config(files->config_json()));
  EXPECT_EQ(weights.embedding().rows, 3072U);
  EXPECT_EQ(weights.embedding().cols, 128U);
  EXPECT_EQ(weights.output().data, weights.embedding().data);
  ASSERT_EQ(weights.layers().size(), 6U);
  for (const auto& layer : weights.layers()) {
    ASSERT_EQ(layer.experts.size(), 64U);
    EXPECT_EQ(layer.experts[63].down.dtype, weight_dtype::bf16);
    EXPECT_EQ(layer.experts[63].down.rows, 128U);
    EXPECT_EQ(layer.experts[63].down.cols, 32U);
  }
}

TEST(weights, embedded_bytes_are_those_of_the_source_tree) {
  const auto embedded = open_model("");
  const auto folder = open_model(ELDR_SOURCE_DIR "/models/tiny-moe");
  EXPECT_EQ(embedded->config_json(), folder->config_json());
  EXPECT_EQ(embedded->tokenizer_json(), folder->tokenizer_json());
  EXPECT_TRUE(std::ranges::equal(embedded->safetensors(), folder->safetensors()));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(embedded->safetensors().data()) % 64, 0U);
  const auto hash_of = [](const auto& files) {
    return model_weights(files, parse_config(files->config_json())).content_hash();
  };
  EXPECT_EQ(hash_of(embedded), hash_of(folder));
}

TEST(weights, every_tensor_of_the_architecture_is_where_it_belongs) {
  made_tensors tensors = small_tensors();
  // A number in each tensor's first byte, to find it again.
  std::uint8_t number = 0;
  for (auto& [name, tensor] : tensors) {
    tensor.data[0] = std::byte{++number};
  }
  const model_weights weights = load(tensors);
  const auto is = [&](const tensor_view& view, const std::string& name) {
    return view.data[0] == tensors.at(name).data[0];
  };
  EXPECT_TRUE(is(weights.embedding(), "model.embed_tokens.weight"));
  EXPECT_TRUE(is(weights.output(), "lm_head.weight"));
  EXPECT_TRUE(is(weights.final_norm(), "model.norm.weight"));
  for (std::size_t l = 0; l < 2; ++l) {
    const auto& layer = weights.layers()[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".";
    EXPECT_TRUE(is(layer.attention_norm, prefix + "input_layernorm.weight"));
    EXPECT_TRUE(is(layer.expert_norm, prefix + "post_attention_layernorm.weight"));
    EXPECT_TRUE(is(layer.q, prefix + "self_attn.q_proj.weight"));
    EXPECT_TRUE(is(layer.k, prefix + "self_attn.k_proj.weight"));
    EXPECT_TRUE(is(layer.v, prefix + "self_attn.v_proj.weight"));
    EXPECT_TRUE(is(layer.o, prefix + "self_attn.o_proj.weight"));
    EXPECT_TRUE(is(layer.q_norm, prefix + "self_attn.q_norm.weight"));
    EXPECT_TRUE(is(layer.k_norm, prefix + "self_attn.k_norm.weight"));
    EXPECT_TRUE(is(layer.gate, prefix + "mlp.gate.weight"));
    for (std::size_t e = 0; e < 3; ++e) {
      const std::string expert = prefix + "mlp.experts." + std::to_string(e) + ".";
      EXPECT_TRUE(is(layer.experts[e].gate, expert + "gate_proj.weight"));
      EXPECT_TRUE(is(layer.experts[e].up, expert + "up_proj.weight"));
      EXPECT_TRUE(is(layer.experts[e].down, expert + "down_proj.weight"));
    }
  }
}

TEST(weights, unaligned_tensors_are_copied) {
  made_tensors tensors = small_tensors();
  tensors["lm_head.weight"].data[3] = std::byte{9};
  for (std::size_t pad = 0; pad < 8; ++pad) {
    const model_weights weights = load(tensors, small_config(), pad);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weights.embedding().data) % 4, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weights.output().data) % 2, 0U);
    EXPECT_EQ(weights.output().data[3], std::byte{9});
  }
}

TEST(weights, each_missing_tensor_is_named) {
  for (const auto& [name, tensor] : small_tensors()) {
    made_tensors tensors = small_tensors();
    tensors.erase(name);
    EXPECT_THAT(refusal([&] { load(tensors); }), HasSubstr(name));
  }
}

TEST(weights, unknown_tensors_and_wrong_shapes_are_named) {
  made_tensors tensors = small_tensors();
  tensors["model.layers.0.self_attn.q_proj.bias"] = zeros({12});
  EXPECT_THAT(refusal([&] { load(tensors); }),
              HasSubstr("does not know: model.layers.0.self_attn.q_proj.bias."));
  tensors = small_tensors();
  tensors["model.layers.1.mlp.gate.weight"] = zeros({8, 3});
  EXPECT_THAT(refusal([&] { load(tensors); }),
              HasSubstr("model.layers.1.mlp.gate.weight has shape [8, 3], but config.json makes "
                        "it [3, 8]"));
}

TEST(weights, a_tied_model_has_no_output_tensor) {
  nlohmann::json config = small_config();
  config["tie_word_embeddings"] = true;
  made_tensors tensors = small_tensors();
  EXPECT_THAT(refusal([&] { load(tensors, config); }), HasSubstr("lm_head.weight"));
  tensors.erase("lm_head.weight");
  const model_weights weights = load(tensors, config);
  EXPECT_EQ(weights.output().data, weights.embedding().data);
}

TEST(weights, a_configuration_that_asks_for_millions_of_tensors_fails_early) {
  nlohmann::json config = small_config();
  config["num_hidden_layers"] = 4096;
  config["num_experts"] = 65'535;
  EXPECT_THAT(refusal([&] { load(small_tensors(), config); }), HasSubstr("has shape [3, 8]"));
  made_tensors tensors = small_tensors();
  tensors["model.layers.0.mlp.gate.weight"] = zeros({65'535, 8});
  EXPECT_THAT(refusal([&] { load(tensors, config); }), HasSubstr("mlp.experts.3.gate_proj"));
}

TEST(weights, the_content_hash_sees_every_change) {
  std::set<std::uint64_t> hashes{load(small_tensors()).content_hash()};
  made_tensors tensors = small_tensors();
  tensors["model.norm.weight"].data[1] = std::byte{1};
  hashes.insert(load(tensors).content_hash());
  nlohmann::json config = small_config();
  config["rope_theta"] = 1e6;
  hashes.insert(load(small_tensors(), config).content_hash());
  EXPECT_EQ(hashes.size(), 3U);
}

TEST(model_files, faults_of_the_folder_are_named) {
  const scratch_folder folder;
  const auto open = [&] { return refusal([&] { open_model(folder.path()); }); };
  EXPECT_THAT(open(), HasSubstr("config.json cannot be opened: No such file"));
  folder.write("config.json", "{}");
  EXPECT_THAT(open(), HasSubstr("tokenizer.json cannot be opened"));
  folder.write("tokenizer.json", "");
  EXPECT_THAT(open(), HasSubstr("tokenizer.json is empty"));
  folder.write("tokenizer.json", "{}");
  folder.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(open(), HasSubstr("shards"));
  folder.write("model.safetensors", "x");
  EXPECT_EQ(open(), "accepted");
  EXPECT_EQ(open_model(folder.path())->config_json(), "{}");
  EXPECT_THAT(refusal([&] { open_model(folder.path() + "/none"); }), HasSubstr("does not exist"));
  EXPECT_THAT(refusal([&] { open_model(folder.path() + "/config.json"); }),
              HasSubstr("not a folder"));
}

}  // namespace
