#include "gpu/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "tests/unit/gpu/memory_model.hpp"

namespace {

using eldr::gpu::read_safetensors;
using eldr::gpu::test::as_bytes;
using eldr::gpu::test::with_header;
using eldr::gpu::test::write_safetensors;
using eldr::gpu::test::zeros;
using testing::HasSubstr;

std::string refusal(const std::string& file) {
  try {
    read_safetensors(as_bytes(file));
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "accepted";
}

/// A file of one entry "t" and `bytes` bytes of data.
std::string one(const std::string& entry, std::size_t bytes) {
  return with_header("{\"t\":" + entry + "}", std::string(bytes, 'x'));
}

TEST(safetensors, reads_back_what_was_written) {
  auto a = zeros({2, 3});
  a.data[5] = std::byte{7};
  const std::string file =
      write_safetensors({{"a", a}, {"b", zeros({5}, "F16")}, {"c", zeros({}, "BF16")}});
  const auto tensors = read_safetensors(as_bytes(file));
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors.at("a").dtype, eldr::gpu::weight_dtype::f32);
  EXPECT_THAT(tensors.at("a").shape, testing::ElementsAre(2, 3));
  EXPECT_THAT(tensors.at("a").data, testing::ElementsAreArray(a.data));
  EXPECT_EQ(tensors.at("b").dtype, eldr::gpu::weight_dtype::f16);
  EXPECT_EQ(tensors.at("b").data.size(), 10U);
  EXPECT_EQ(tensors.at("c").dtype, eldr::gpu::weight_dtype::bf16);
  EXPECT_EQ(tensors.at("c").data.size(), 2U);
}

TEST(safetensors, headers_that_do_not_fit_are_refused) {
  EXPECT_THAT(refusal(""), HasSubstr("too short"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("too short"));
  EXPECT_THAT(refusal(std::string(8, '\xff')), HasSubstr("does not fit"));
  EXPECT_THAT(refusal(with_header("[]", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(with_header("{", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(with_header("{\"t\":1}", "")), HasSubstr("tensor t lacks"));
}

TEST(safetensors, a_tensor_is_refused_by_name) {
  EXPECT_THAT(refusal(one(R"({"dtype":"I8","shape":[4],"data_offsets":[0,4]})", 4)),
              HasSubstr("tensor t has dtype I8"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 3)),
              HasSubstr("tensor t lies outside"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4)),
              HasSubstr("tensor t lies outside"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4)),
              HasSubstr("tensor t of shape [2] does not fill its 4 bytes"));
  // 2^62 * 4 is 0 in 64 bits.
  EXPECT_THAT(
      refusal(one(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})", 0)),
      HasSubstr("does not fill"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4)),
              HasSubstr("no valid shape"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", 4)),
              HasSubstr("lies outside"));
}

TEST(safetensors, deep_nesting_does_no_harm) {
  constexpr std::size_t depth = 200'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  EXPECT_THAT(refusal(with_header("{\"t\":" + deep + "}", "")), HasSubstr("tensor t lacks"));
  EXPECT_THAT(refusal(one("{\"dtype\":" + deep + ",\"shape\":[],\"data_offsets\":[0,0]}", 0)),
              HasSubstr("tensor t has dtype"));
}

TEST(safetensors, tensors_cover_the_file_once) {
  const std::string t = R"("t":{"dtype":"F16","shape":[2],"data_offsets":[0,4]})";
  const auto with = [&](const std::string& other, std::size_t bytes) {
    return refusal(with_header("{" + t + "," + other + "}", std::string(bytes, 'x')));
  };
  EXPECT_EQ(with(R"("u":{"dtype":"F16","shape":[2],"data_offsets":[4,8]})", 8), "accepted");
  EXPECT_THAT(with(R"("u":{"dtype":"F16","shape":[2],"data_offsets":[2,6]})", 6),
              HasSubstr("tensor u does not begin where"));
  EXPECT_THAT(with(R"("u":{"dtype":"F16","shape":[2],"data_offsets":[6,10]})", 10),
              HasSubstr("tensor u does not begin where"));
  EXPECT_THAT(with(R"("u":{"dtype":"F16","shape":[2],"data_offsets":[4,8]})", 9),
              HasSubstr("behind the last tensor"));
  EXPECT_THAT(with(R"("u":{"dtype":"F16","shape":[0],"data_offsets":[2,2]})", 4),
              HasSubstr("does not begin where"));
  EXPECT_THAT(with(t, 4), HasSubstr("tensor t is there twice"));
}

TEST(safetensors, damaged_files_never_yield_bytes_outside) {
  const std::string good = write_safetensors({{"model.a", zeros({4, 4})},
                                              {"model.b", zeros({16}, "BF16")},
                                              {"model.c", zeros({2, 2, 2}, "F16")}});
  std::mt19937_64 random(11);
  std::size_t accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string file = good;
    const std::size_t header = file.size() - 64 - 32 - 16;
    for (std::uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      const char printable[] = "0123456789[]{},:\"- eE.";
      file[random() % header] = random() % 2 == 0 ? static_cast<char>(random())
                                                  : printable[random() % (sizeof printable - 1)];
    }
    file.resize(file.size() - (random() % 4 == 0 ? random() % file.size() : 0));
    try {
      for (const auto& [name, tensor] : read_safetensors(as_bytes(file))) {
        const auto* const begin = reinterpret_cast<const char*>(tensor.data.data());
        ASSERT_GE(begin, file.data());
        ASSERT_LE(begin + tensor.data.size(), file.data() + file.size());
      }
      ++accepted;  // An edit of a name, say.
    } catch (const std::runtime_error&) {
    }
  }
  EXPECT_GT(accepted, 0U);
}

}  // namespace
