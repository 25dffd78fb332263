#pragma once
/// Text for tests: a character is a token, and a token's text is its id in brackets.

#include <memory>
#include <string>

#include "actors/request/text.hpp"

namespace eldr::actors::test {

class test_codec final : public text_codec {
 public:
  static constexpr gpu::token_id end_token = 250;

  std::vector<gpu::token_id> encode(std::string_view text) const override {
    return {text.begin(), text.end()};
  }
  std::unique_ptr<text_decoder> make_decoder() const override {
    return std::make_unique<decoder>();
  }
  bool is_end_token(gpu::token_id id) const override { return id == end_token; }
  std::uint32_t vocab() const override { return 251; }
  std::uint32_t context_max() const override { return 32; }

 private:
  struct decoder final : text_decoder {
    std::string feed(gpu::token_id id) override { return "[" + std::to_string(id) + "]"; }
    std::string flush() override { return "."; }
  };
};

}  // namespace eldr::actors::test
