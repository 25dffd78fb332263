#include "cluster/tokenizer_codec.hpp"

#include <algorithm>

#include "gpu/model_config.hpp"
#include "gpu/text_stream.hpp"
#include "gpu/tokenizer.hpp"

namespace eldr::cluster {
namespace {

class stream_decoder final : public actors::text_decoder {
 public:
  explicit stream_decoder(const gpu::tokenizer& tokens) : stream_(tokens) {}
  std::string feed(gpu::token_id id) override { return stream_.feed(id); }
  std::string flush() override { return stream_.flush(); }

 private:
  gpu::text_stream stream_;
};

class tokenizer_codec final : public actors::text_codec {
 public:
  explicit tokenizer_codec(const gpu::model_files& files)
      : config_(gpu::parse_config(files.config_json())), tokenizer_(files.tokenizer_json()) {}

  std::vector<gpu::token_id> encode(std::string_view text) const override {
    return tokenizer_.encode(text);
  }
  std::unique_ptr<actors::text_decoder> make_decoder() const override {
    return std::make_unique<stream_decoder>(tokenizer_);
  }
  bool is_end_token(gpu::token_id id) const override {
    return std::find(config_.eos.begin(), config_.eos.end(), id) != config_.eos.end();
  }
  std::uint32_t vocab() const override { return config_.geometry.vocab; }
  // A signature cell counts tokens in 16 bits.
  std::uint32_t context_max() const override {
    return std::min(config_.geometry.context_max, 65'535U);
  }

 private:
  gpu::model_config config_;
  gpu::tokenizer tokenizer_;
};

}  // namespace

std::shared_ptr<const actors::text_codec> make_tokenizer_codec(const gpu::model_files& files) {
  return std::make_shared<tokenizer_codec>(files);
}

}  // namespace eldr::cluster
