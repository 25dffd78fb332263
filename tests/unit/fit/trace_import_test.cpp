#include "fit/trace_import.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "fit/counts.hpp"
#include "fit/error.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string encode_base64(std::string_view bytes) {
  constexpr std::string_view alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      bits = bits << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? alphabet[bits >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

template <typename T>
std::string raw(const std::vector<T>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T)};
}

template <typename T>
std::string npy(const std::vector<T>& ids, std::uint64_t layers, std::uint64_t k) {
  const testing::temporary_folder folder;
  npy_writer writer(folder.path() / "a.npy", sizeof(T) == 1 ? npy_type::uint8 : npy_type::uint16,
                    {layers, k});
  writer.append(std::as_bytes(std::span(ids)));
  writer.finish();
  std::ifstream file(folder.path() / "a.npy", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Three rows, two layers, two experts per token: two prompt and two completion tokens.
const std::vector<std::uint8_t> ids{0, 1, 2, 3, 1, 2, 3, 0, 4, 0, 1, 3};

json vllm_response() {
  return {{"id", "cmpl-1"},
          {"label", "law"},
          {"choices", {{{"index", 0}, {"routed_experts", encode_base64(npy(ids, 2, 2))}}}},
          {"usage", {{"prompt_tokens", 2}, {"completion_tokens", 2}}}};
}

class importing : public ::testing::Test {
 protected:
  import_summary import(const std::vector<json>& responses, const import_options& options = {}) {
    std::ofstream file(folder_.path() / "responses.jsonl");
    for (const json& response : responses) {
      file << response.dump() << "\n";
    }
    file.close();
    return import_trace(folder_.path() / "responses.jsonl", trace_, options);
  }

  std::string error_of(const json& response, const import_options& options = {}) {
    try {
      import({response}, options);
    } catch (const fit_error& error) {
      // Nothing but the responses is left.
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
      return error.what();
    }
    return "";
  }

  testing::temporary_folder folder_;
  std::filesystem::path trace_ = folder_.path() / "trace";
};

TEST_F(importing, takes_npy_arrays_of_vllm) {
  auto second = vllm_response();
  second["id"] = "cmpl-2";
  second.erase("label");
  const std::vector<std::uint16_t> wide(ids.begin(), ids.end());
  second["choices"][0]["routed_experts"] = encode_base64(npy(wide, 2, 2));
  second.erase("usage");
  second["prompt_token_ids"] = {11, 12, 13};
  second["choices"][0]["token_ids"] = {14};
  const auto summary = import({vllm_response(), second}, {.block_tokens = 32, .model = "m"});
  EXPECT_EQ(summary.requests, 2u);
  EXPECT_EQ(summary.rows, 6u);
  EXPECT_EQ(summary.experts, 5u);
  const auto imported = trace::open(trace_);
  EXPECT_EQ(imported.properties().experts, 5u);
  EXPECT_EQ(imported.properties().source, "vLLM");
  EXPECT_EQ(imported.properties().block_tokens, 32u);
  EXPECT_EQ(imported.requests()[0].label, "law");
  EXPECT_EQ(imported.requests()[1].label, "");
  EXPECT_EQ(imported.requests()[1].first_row, 3u);
  const auto counts = count_trace(imported, 5);
  EXPECT_THAT(counts.prefill_tokens, ElementsAre(2, 3));
  EXPECT_THAT(counts.prefill_of(0), ElementsAre(1, 2, 1, 0, 0, 1, 0, 1, 2, 0));
}

TEST_F(importing, takes_objects_of_vllm) {
  auto response = vllm_response();
  response["choices"][0]["routed_experts"] = {
      {"data", encode_base64(raw(ids))}, {"shape", {3, 2, 2}}, {"start", 0}};
  EXPECT_EQ(import({response}).rows, 3u);
  std::vector<std::uint16_t> row(4);
  trace::open(trace_).read_row(2, row);
  EXPECT_THAT(row, ElementsAre(4, 0, 1, 3));
}

TEST_F(importing, takes_int32_of_sglang) {
  const std::vector<std::int32_t> wide(ids.begin(), ids.end());
  const json response = {{"text", "..."},
                         {"meta_info",
                          {{"id", "x"},
                           {"prompt_tokens", 3},
                           {"completion_tokens", 1},
                           {"routed_experts", encode_base64(raw(wide))}}}};
  json chat = vllm_response();
  chat["choices"][0] = {{"sgl_ext", {{"routed_experts", encode_base64(raw(wide))}}}};
  const import_options options{
      .format = response_format::sglang, .layers = 2, .experts_per_token = 2, .experts = 8};
  EXPECT_EQ(import({response, chat}, options).experts, 8u);
  const auto imported = trace::open(trace_);
  EXPECT_EQ(imported.requests()[0].id, "x");
  EXPECT_EQ(imported.requests()[0].prefill_rows, 3u);
  EXPECT_EQ(imported.requests()[1].prefill_rows, 2u);
}

TEST_F(importing, refuses_faults_by_line_and_leaves_nothing) {
  auto response = vllm_response();
  EXPECT_THAT(error_of(json::array()), HasSubstr("line 1: this is no JSON object"));
  response["usage"]["completion_tokens"] = 3;
  EXPECT_THAT(error_of(response), HasSubstr("3 rows where 2 prompt and 3 completion"));
  response.erase("usage");
  EXPECT_THAT(error_of(response), HasSubstr("number of prompt tokens is missing"));
  response = vllm_response();
  response["choices"].push_back(response["choices"][0]);
  EXPECT_THAT(error_of(response), HasSubstr("exactly one choice"));
  response = vllm_response();
  response["choices"][0].erase("routed_experts");
  EXPECT_THAT(error_of(response), HasSubstr("ask the engine to return routed experts"));
  response["choices"][0]["routed_experts"] = "!!!";
  EXPECT_THAT(error_of(response), HasSubstr("no Base64"));
  response["choices"][0]["routed_experts"] = encode_base64("no array");
  EXPECT_THAT(error_of(response), HasSubstr("magic"));
  response["choices"][0]["routed_experts"] = encode_base64(npy(ids, 12, 1));
  EXPECT_THAT(error_of(response), HasSubstr("1 rows"));
}

TEST_F(importing, refuses_ids_that_cannot_be) {
  EXPECT_THAT(error_of(vllm_response(), {.experts = 4}), HasSubstr("expert id 4"));
  auto twice = ids;
  twice[1] = 0;
  auto response = vllm_response();
  response["choices"][0]["routed_experts"] = encode_base64(npy(twice, 2, 2));
  EXPECT_THAT(error_of(response), HasSubstr("row 0, layer 0 has all ids 0"));
  twice[0] = twice[1] = 3;
  response["choices"][0]["routed_experts"] = encode_base64(npy(twice, 2, 2));
  EXPECT_THAT(error_of(response), HasSubstr("expert id 3 twice"));
  auto unrecorded = ids;
  std::fill_n(unrecorded.begin() + 4, 4, std::uint8_t{0});
  response["choices"][0]["routed_experts"] = encode_base64(npy(unrecorded, 2, 2));
  EXPECT_THAT(error_of(response), HasSubstr("row 1 is all zero"));
  // With one expert per token a row of zeros would be well-formed.
  response["choices"][0]["routed_experts"] =
      encode_base64(npy(std::vector<std::uint8_t>{1, 2, 0, 0, 2, 1}, 2, 1));
  EXPECT_THAT(error_of(response), HasSubstr("row 1 is all zero"));
}

TEST_F(importing, refuses_objects_that_do_not_agree) {
  auto response = vllm_response();
  auto& routed = response["choices"][0]["routed_experts"];
  routed = {{"data", encode_base64(raw(ids))}, {"shape", {3, 2, 2}}, {"start", 1}};
  EXPECT_THAT(error_of(response), HasSubstr("starts after the first prompt token"));
  routed["start"] = nullptr;
  routed["shape"] = {2, 2, 2};
  EXPECT_THAT(error_of(response), HasSubstr("12 bytes, which do not match its shape"));
  routed["shape"] = {3, 0, 2};
  EXPECT_THAT(error_of(response), HasSubstr("shape"));
  routed["shape"] = {3, -2, 2};
  EXPECT_THAT(error_of(response), HasSubstr("shape"));
  routed.erase("data");
  routed["shape"] = {3, 2, 2};
  EXPECT_THAT(error_of(response), HasSubstr("Base64"));
}

TEST_F(importing, refuses_faults_of_sglang) {
  json response = {{"meta_info", {{"prompt_tokens", 3}, {"completion_tokens", 1}}}};
  auto& routed = response["meta_info"]["routed_experts"];
  import_options options{.format = response_format::sglang};
  routed = encode_base64(raw(std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_THAT(error_of(response, options), HasSubstr("give the number of layers"));
  options.layers = 2;
  options.experts_per_token = 2;
  EXPECT_THAT(error_of(response, options), HasSubstr("no whole number of rows"));
  std::vector<std::int32_t> negative(ids.begin(), ids.end());
  negative[3] = -1;
  routed = encode_base64(raw(negative));
  EXPECT_THAT(error_of(response, options), HasSubstr("expert id -1 is out of range"));
  negative[3] = 70'000;
  routed = encode_base64(raw(negative));
  EXPECT_THAT(error_of(response, options), HasSubstr("expert id 70000 is out of range"));
}

TEST_F(importing, refuses_shapes_that_change_and_folders_in_use) {
  auto other = vllm_response();
  other["id"] = "cmpl-2";
  other["choices"][0]["routed_experts"] =
      encode_base64(npy(std::vector<std::uint8_t>{0, 1, 2, 3, 0, 1}, 1, 2));
  EXPECT_THROW(import({vllm_response(), other}), fit_error);
  EXPECT_FALSE(std::filesystem::exists(trace_));
  import({vllm_response()});
  EXPECT_THROW(import({vllm_response()}), fit_error);
  EXPECT_EQ(trace::open(trace_).requests().size(), 1u);
  EXPECT_THROW(import_trace(folder_.path() / "none.jsonl", folder_.path() / "t", {}), fit_error);
}

TEST_F(importing, refuses_an_empty_file) {
  EXPECT_THROW(import({}), fit_error);
}

}  // namespace
}  // namespace eldr::fit
