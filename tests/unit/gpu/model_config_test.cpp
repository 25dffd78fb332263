#include "gpu/model_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gpu/model_files.hpp"
#include "tests/unit/gpu/memory_model.hpp"

namespace {

using eldr::gpu::parse_config;
using eldr::gpu::test::small_config;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// The message of the error that a configuration is refused with.
std::string refusal(const std::string& text) {
  try {
    parse_config(text);
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(model_config, the_embedded_model_is_read) {
  const auto config = parse_config(eldr::gpu::open_model("")->config_json());
  const eldr::gpu::model_geometry expected{.layers = 6,
                                           .experts = 64,
                                           .experts_per_token = 4,
                                           .hidden = 128,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 32,
                                           .expert_width = 32,
                                           .vocab = 3072,
                                           .context_max = 1024};
  EXPECT_EQ(config.geometry, expected);
  EXPECT_EQ(config.rms_norm_eps, 1e-6F);
  EXPECT_EQ(config.rope_theta, 10'000.0);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos, 257U);
  EXPECT_THAT(config.eos, testing::ElementsAre(258U));
}

TEST(model_config, absent_keys_have_the_architectures_defaults) {
  json text = small_config();
  text.erase("architectures");
  text.erase("head_dim");
  const auto config = parse_config(text.dump());
  EXPECT_EQ(config.geometry.head_dim, 4U);
  EXPECT_EQ(config.rms_norm_eps, 1e-6F);
  EXPECT_EQ(config.rope_theta, 10'000.0);
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos, std::nullopt);
  EXPECT_TRUE(config.eos.empty());
}

TEST(model_config, features_that_are_switched_off_may_be_named) {
  json text = small_config();
  text.update(json::parse(R"({
      "rope_scaling":null, "use_sliding_window":false, "sliding_window":4096, "mlp_only_layers":[],
      "shared_expert_intermediate_size":0, "attention_bias":false,
      "layer_types":["full_attention","full_attention"],
      "rope_parameters":{"rope_type":"default","rope_theta":5e6}, "eos_token_id":[3,4]})"));
  const auto config = parse_config(text.dump());
  EXPECT_EQ(config.rope_theta, 5e6);
  EXPECT_THAT(config.eos, testing::ElementsAre(3U, 4U));
}

struct fault {
  const char* key;    ///< What is changed in a valid configuration,
  const char* value;  ///< to this JSON text,
  const char* says;   ///< and what the error says beside the key.
};
void PrintTo(const fault& f, std::ostream* out) {
  *out << f.key << " = " << f.value;
}

class refused : public testing::TestWithParam<fault> {};

TEST_P(refused, by_name) {
  json text = small_config();
  text[GetParam().key] = json::parse(GetParam().value);
  EXPECT_THAT(refusal(text.dump()), AllOf(HasSubstr(GetParam().key), HasSubstr(GetParam().says)));
}
INSTANTIATE_TEST_SUITE_P(
    features, refused,
    testing::Values(
        fault{"model_type", R"("llama")", R"("llama" is not supported)"},
        fault{"architectures", R"(["MixtralForCausalLM"])", R"(["MixtralForCausalLM"])"},
        fault{"rope_scaling", R"({"type":"yarn"})", "RoPE scaling"},
        fault{"rope_scaling", R"({"type":"yarn"})", "rope_scaling = {...}"},
        fault{"rope_parameters", R"({"rope_type":"yarn"})", R"(only "default" is)"},
        fault{"use_sliding_window", "true", "Sliding-window"},
        fault{"layer_types", R"(["sliding_attention"])", "not supported"},
        fault{"mlp_only_layers", "[0]", "[0]"}, fault{"decoder_sparse_step", "2", "only 1 is"},
        fault{"shared_expert_intermediate_size", "512", "shared expert"},
        fault{"n_shared_experts", "1", "shared expert"}, fault{"attention_bias", "true", "bias"},
        fault{"quantization_config", R"({"quant_method":"fp8"})", "Quantisation"},
        fault{"hidden_act", R"("gelu")", R"(only "silu" is)"}));
INSTANTIATE_TEST_SUITE_P(
    geometry, refused,
    testing::Values(
        fault{"num_hidden_layers", "null", "missing"}, fault{"num_hidden_layers", "0", "not be 0"},
        fault{"num_experts", "-4", "whole number"}, fault{"num_experts", "2.5", "whole number"},
        fault{"num_experts", R"("8")", "whole number"},
        fault{"num_experts", "65536", "whole number"}, fault{"vocab_size", "1e30", "whole number"},
        fault{"num_experts_per_tok", "4", "num_experts 3"},
        fault{"num_key_value_heads", "3", "not a multiple"}, fault{"head_dim", "5", "odd"},
        fault{"head_dim", "1000000", "more than"}, fault{"rms_norm_eps", "0", "above 0"},
        fault{"rope_theta", R"("big")", "above 0"}, fault{"norm_topk_prob", "1", "true or false"},
        fault{"eos_token_id", "10", "up to 9"}, fault{"eos_token_id", "[1,-1]", "up to 9"},
        fault{"bos_token_id", R"("<s>")", "up to 9"}));

TEST(model_config, text_that_is_no_configuration_is_refused) {
  EXPECT_THAT(refusal(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\": 1"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{\"a\": 1e999}"), HasSubstr("out of range"));
  EXPECT_THAT(refusal("{}"), HasSubstr("model_type"));
}

TEST(model_config, deep_nesting_does_no_harm) {
  constexpr std::size_t depth = 200'000;
  std::string text = small_config().dump();
  text.pop_back();
  text += ",\"rope_scaling\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  EXPECT_THAT(refusal(text), HasSubstr("rope_scaling = [...]"));
}

TEST(model_config, cut_off_text_is_refused_at_every_byte) {
  const std::string text = small_config().dump();
  for (std::size_t n = 0; n < text.size(); ++n) {
    EXPECT_THROW(parse_config(text.substr(0, n)), std::runtime_error);
  }
}

}  // namespace
