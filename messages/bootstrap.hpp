#pragma once
/// Bytes of the bootstrap connection: the preamble that is checked before anything is parsed, the
/// Hello and the Welcome after it, and the records that open and end a session. Pure.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "messages/sha256.hpp"
#include "messages/transport.hpp"

namespace eldr::messages {

inline constexpr std::uint32_t protocol_version = 1;
/// Longest Hello or Welcome.
inline constexpr std::uint32_t bootstrap_bytes_max = 256u << 10;
/// Most regions that a node may offer.
inline constexpr std::uint32_t regions_max = 64;

enum class preamble_kind : std::uint32_t {
  hello = 1,
  welcome = 2,
  other_version = 3,  ///< Answer of a listener that speaks another version; nothing follows.
  wrong_token = 4,    ///< Answer to a token that is not the cluster's; nothing follows.
};

/// As on the wire. Each side proves the token by a digest of its own: what a dialer sends cannot be
/// sent back to it as a listener's proof.
struct preamble {
  static constexpr std::uint32_t magic_value = 0x52444c45;  // "ELDR"

  std::uint32_t magic = magic_value;
  std::uint32_t version = protocol_version;
  preamble_kind kind = preamble_kind::hello;
  std::uint32_t length = 0;    ///< Bytes that follow; a multiple of 8.
  std::uint64_t checksum = 0;  ///< XXH3 of them.
  digest token{};
};
static_assert(sizeof(preamble) == 56);

/// Digests of the cluster's token.
struct token_proof {
  explicit token_proof(const std::string& token);
  digest dialer;
  digest listener;
};

/// What follows the welcome, in both directions: 24 bytes each. Numbers are stable.
enum class record_code : std::uint32_t {
  go = 1,         ///< Listener: the first frame came, the session is open.
  closed = 2,     ///< This end closed the session.
  replaced = 3,   ///< A newer session took its place.
  stopped = 4,    ///< The node stops; frames up to the numbers given are on their way.
  malformed = 5,  ///< This end received bytes that it cannot read.
  overflow = 6,   ///< This end's queue to the peer is full.
  failed = 7,     ///< This end's endpoint failed.
};
struct session_record {
  static constexpr std::uint32_t magic_value = 0x53444c45;  // "ELDS"

  std::uint32_t magic = magic_value;
  record_code code = record_code::closed;
  std::uint64_t bulk_sent = 0;
  std::uint64_t reserved_sent = 0;
};
static_assert(sizeof(session_record) == 24);

/// A region with what a peer's transport needs in order to read it.
struct region_descriptor {
  std::uint32_t id = 0;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  std::vector<std::byte> key;
};

/// Contents of a Hello or a Welcome.
struct greeting {
  identity id;
  std::vector<region_descriptor> regions;  ///< Ids count from 0.
  std::vector<std::byte> worker_address;
  std::uint64_t nonce = 0;
  std::uint32_t frame_bytes_max = 0;
  std::uint32_t credit_frames = 0;
  std::string refused;  ///< Welcome only. Not empty: nothing else counts.
};

/// The preamble that goes before `body`, without a token.
preamble seal(preamble_kind kind, std::span<const std::byte> body) noexcept;
/// Preamble and message, ready to be written. `kind` is hello or welcome.
std::vector<std::byte> encode_greeting(preamble_kind kind, const greeting&, const digest& token);
/// Answer to a preamble that was not accepted.
std::vector<std::byte> encode_refusal(preamble_kind kind);

/// Takes the first sizeof(preamble) bytes apart; throws std::runtime_error if they are none.
preamble decode_preamble(std::span<const std::byte> bytes);
/// Reads what followed `before`. Throws std::runtime_error with a sentence if it is not valid.
greeting decode_greeting(const preamble& before, std::span<const std::byte> body);

/// The session's nonce from both halves; never 0.
std::uint64_t session_nonce(std::uint64_t dialer_half, std::uint64_t listener_half) noexcept;

}  // namespace eldr::messages
