#pragma once
/// Text in and out of token ids, as the gateway needs it. A node binds it to the model's tokenizer.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::actors {

/// Turns the ids of one stream into text, a whole UTF-8 character at a time.
class text_decoder {
 public:
  virtual ~text_decoder() = default;
  /// Text that became complete with `id`; often empty.
  virtual std::string feed(gpu::token_id id) = 0;
  /// What is left at the end.
  virtual std::string flush() = 0;
};

/// What a gateway knows of the model. Shared by all requests; const and thread-safe.
class text_codec {
 public:
  virtual ~text_codec() = default;
  virtual std::vector<gpu::token_id> encode(std::string_view text) const = 0;
  virtual std::unique_ptr<text_decoder> make_decoder() const = 0;
  virtual bool is_end_token(gpu::token_id) const = 0;
  virtual std::uint32_t vocab() const = 0;
  /// Positions that a sequence may have.
  virtual std::uint32_t context_max() const = 0;
};

}  // namespace eldr::actors
