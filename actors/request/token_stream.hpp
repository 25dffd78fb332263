#pragma once
/// What a client has received of its answer: the only truth about a request (design rules 1, 3 and
/// 4). Pure.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "actors/common/wire.hpp"

namespace eldr::actors {

class token_stream {
 public:
  using end_test = std::function<bool(gpu::token_id)>;

  token_stream(std::vector<gpu::token_id> prompt, generation gen, end_test is_end)
      : tokens_(std::move(prompt)),
        prompt_(tokens_.size()),
        gen_(gen),
        is_end_(std::move(is_end)) {}

  enum class verdict : std::uint8_t {
    repeat,  ///< Nothing new: every position was delivered before.
    fresh,   ///< `fresh` holds what is new.
    gap,     ///< Positions are missing; the attempt has failed.
    excess,  ///< Tokens beyond the end of the answer; the attempt has failed.
  };
  /// Takes `ids` at `position` (counted from the first generated token). What was delivered before
  /// is ignored; new ids are appended to `fresh`.
  verdict take(std::uint32_t position, std::span<const gpu::token_id> ids,
               std::vector<gpu::token_id>& fresh) {
    if (position > delivered()) {
      return verdict::gap;
    }
    const auto known = delivered() - position;
    if (known >= ids.size()) {
      return verdict::repeat;
    }
    for (auto id : ids.subspan(known)) {
      if (finished() != wire::FinishReason::NONE) {
        return verdict::excess;
      }
      tokens_.push_back(id);
      fresh.push_back(id);
    }
    return verdict::fresh;
  }

  /// Whether the answer is complete, by the stop conditions and what was delivered.
  wire::FinishReason finished() const {
    if (delivered() > 0 && is_end_(tokens_.back())) {
      return wire::FinishReason::EOS;
    }
    return delivered() >= gen_.tokens_max ? wire::FinishReason::LENGTH : wire::FinishReason::NONE;
  }

  /// Generated tokens delivered so far.
  std::uint32_t delivered() const { return static_cast<std::uint32_t>(tokens_.size() - prompt_); }
  std::uint32_t prompt_tokens() const { return static_cast<std::uint32_t>(prompt_); }
  /// Prompt and delivered tokens: what an attempt starts from.
  std::span<const gpu::token_id> tokens() const { return tokens_; }
  /// Sampling of the next attempt: fewer tokens to go.
  generation remaining() const {
    auto left = gen_;
    left.tokens_max -= delivered();
    return left;
  }
  const generation& whole() const { return gen_; }

 private:
  std::vector<gpu::token_id> tokens_;
  std::size_t prompt_;
  generation gen_;
  end_test is_end_;
};

}  // namespace eldr::actors
