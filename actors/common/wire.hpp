#pragma once
/// Between wire structs and the plain ones that the cores use.

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/common/ids.hpp"
#include "gpu/engine.hpp"
#include "messages/frame.hpp"

namespace eldr::actors {

/// How a request's tokens are drawn and how many there may be.
struct generation {
  std::uint32_t tokens_max = 0;  ///< Tokens still to generate.
  gpu::sampling sampling;
  bool operator==(const generation&) const = default;
};

inline generation read(wire::Sampling::Reader in) {
  return {in.getMaxTokens(), {in.getSeed(), in.getTemperature(), in.getTopK(), in.getTopP()}};
}

inline void write(wire::Sampling::Builder out, const generation& g) {
  out.setMaxTokens(g.tokens_max);
  out.setSeed(g.sampling.seed);
  out.setTemperature(g.sampling.temperature);
  out.setTopK(g.sampling.top_k);
  out.setTopP(g.sampling.top_p);
}

/// Names leased KV blocks of a prefill worker.
struct kv_ref {
  std::string node;
  std::uint64_t incarnation = 0;
  std::uint64_t lease = 0;
  std::uint32_t region = 0;
  std::vector<gpu::block_id> blocks;
  std::uint32_t tokens = 0;
};

inline std::vector<std::uint32_t> read(capnp::List<std::uint32_t>::Reader in) {
  std::vector<std::uint32_t> out;
  out.reserve(in.size());
  for (auto value : in) {
    out.push_back(value);
  }
  return out;
}

inline std::vector<std::string> read(capnp::List<capnp::Text>::Reader in) {
  std::vector<std::string> out;
  out.reserve(in.size());
  for (auto text : in) {
    out.emplace_back(text.cStr(), text.size());
  }
  return out;
}

inline std::string read(capnp::Text::Reader in) {
  return {in.cStr(), in.size()};
}

inline void write(capnp::List<std::uint32_t>::Builder out, std::span<const std::uint32_t> in) {
  for (unsigned i = 0; i < in.size(); ++i) {
    out.set(i, in[i]);
  }
}

inline void write(capnp::List<capnp::Text>::Builder out, std::span<const std::string> in) {
  for (unsigned i = 0; i < in.size(); ++i) {
    out.set(i, in[i]);
  }
}

inline kv_ref read(wire::KvRef::Reader in) {
  return {read(in.getNode()), in.getIncarnation(),  in.getLease(),
          in.getRegion(),     read(in.getBlocks()), in.getTokens()};
}

inline void write(wire::KvRef::Builder out, const kv_ref& ref) {
  out.setNode(ref.node);
  out.setIncarnation(ref.incarnation);
  out.setLease(ref.lease);
  out.setRegion(ref.region);
  write(out.initBlocks(static_cast<unsigned>(ref.blocks.size())), ref.blocks);
  out.setTokens(ref.tokens);
}

/// An empty message to an actor kind; `payload_words` sizes the first segment.
inline messages::outgoing_ptr make_message(wire::ActorKind to, std::size_t payload_words = 0) {
  auto out = std::make_unique<messages::outgoing>(static_cast<std::uint32_t>(48 + payload_words));
  out->root().setTo(to);
  return out;
}

/// Words that a list of 32-bit values takes.
constexpr std::size_t words_for_u32(std::size_t count) {
  return count / 2 + 2;
}

/// Failed{...}, to the request (through its gateway).
struct failure {
  wire::Phase phase{};
  wire::FailReason reason{};
  std::string detail;
  std::string suspect;
  std::uint32_t retry_after_ms = 0;
};

inline messages::outgoing_ptr make_failed(const attempt_key& key, const failure& why) {
  auto out = make_message(wire::ActorKind::GATEWAY, why.detail.size() / 8 + why.suspect.size() / 8);
  auto failed = out->root().initFailed();
  write(failed.initAttempt(), key);
  failed.setPhase(why.phase);
  failed.setReason(why.reason);
  failed.setDetail(why.detail);
  failed.setSuspect(why.suspect);
  failed.setRetryAfterMs(why.retry_after_ms);
  return out;
}

inline messages::outgoing_ptr make_cancel(wire::ActorKind to, const attempt_key& key) {
  auto out = make_message(to);
  write(out->root().initCancel().initAttempt(), key);
  return out;
}

inline messages::outgoing_ptr make_release(const attempt_key& key, std::uint64_t lease,
                                           bool abandon) {
  auto out = make_message(wire::ActorKind::PREFILL);
  auto release = out->root().initRelease();
  write(release.initAttempt(), key);
  release.setLease(lease);
  release.setAbandon(abandon);
  return out;
}

/// Tokens{...}, to the request.
inline messages::outgoing_ptr make_tokens(const attempt_key& key, std::uint32_t position,
                                          std::span<const std::uint32_t> ids,
                                          wire::FinishReason finish, std::uint32_t cached_tokens,
                                          std::span<const std::uint16_t> choices = {}) {
  auto out = make_message(wire::ActorKind::GATEWAY,
                          words_for_u32(ids.size()) + choices.size_bytes() / 8 + 1);
  auto tokens = out->root().initTokens();
  write(tokens.initAttempt(), key);
  tokens.setPosition(position);
  write(tokens.initIds(static_cast<unsigned>(ids.size())), ids);
  tokens.setFinish(finish);
  tokens.setCachedTokens(cached_tokens);
  if (!choices.empty()) {
    std::memcpy(tokens.initChoices(static_cast<unsigned>(choices.size_bytes())).begin(),
                choices.data(), choices.size_bytes());
  }
  return out;
}

}  // namespace eldr::actors
