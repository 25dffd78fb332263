#include "messages/bootstrap.hpp"

#include <capnp/serialize.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "messages/bootstrap.capnp.h"

namespace eldr::messages {

namespace {

digest prove(const std::string& purpose, const std::string& token) {
  const auto text = purpose + '\0' + token;
  return sha256(std::as_bytes(std::span(text)));
}

capnp::Data::Reader to_data(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> from_data(capnp::Data::Reader data) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data.begin());
  return {bytes, bytes + data.size()};
}

std::string from_text(capnp::Text::Reader text) {
  return {text.cStr(), text.size()};
}

void write_identity(wire::Identity::Builder to, const greeting& from) {
  to.setNode(from.id.node);
  to.setRole(from.id.role);
  to.setIncarnation(from.id.incarnation);
  to.setFingerprint(from.id.fingerprint);
  to.setLayout(from.id.layout);
  to.setAddress(from.id.address);
  to.setWorkerAddress(to_data(from.worker_address));
  auto regions = to.initRegions(static_cast<unsigned>(from.regions.size()));
  for (unsigned i = 0; i < regions.size(); ++i) {
    regions[i].setId(from.regions[i].id);
    regions[i].setBytes(from.regions[i].bytes);
    regions[i].setAddress(from.regions[i].address);
    regions[i].setKey(to_data(from.regions[i].key));
  }
}

template <typename Message>
void write(Message to, const greeting& from) {
  write_identity(to.initIdentity(), from);
  to.setNonce(from.nonce);
  to.setFrameBytesMax(from.frame_bytes_max);
  to.setCreditFrames(from.credit_frames);
}

void read_regions(wire::Identity::Reader from, greeting& to) {
  if (from.getRegions().size() > regions_max) {
    throw std::runtime_error("it offers more memory regions than a node may have");
  }
  for (const auto region : from.getRegions()) {
    if (region.getId() != to.regions.size()) {
      throw std::runtime_error("its memory regions are not numbered from 0");
    }
    if (region.getAddress() + region.getBytes() < region.getAddress()) {
      throw std::runtime_error("one of its memory regions does not fit the address space");
    }
    to.regions.push_back(
        {region.getId(), region.getBytes(), region.getAddress(), from_data(region.getKey())});
  }
}

template <typename Message>
greeting read(Message from) {
  greeting to;
  const auto who = from.getIdentity();
  to.id.node = from_text(who.getNode());
  to.id.role = from_text(who.getRole());
  to.id.incarnation = who.getIncarnation();
  to.id.fingerprint = who.getFingerprint();
  to.id.layout = who.getLayout();
  to.id.address = from_text(who.getAddress());
  to.worker_address = from_data(who.getWorkerAddress());
  to.nonce = from.getNonce();
  to.frame_bytes_max = from.getFrameBytesMax();
  to.credit_frames = from.getCreditFrames();
  read_regions(who, to);
  return to;
}

void check(const greeting& heard) {
  if (heard.id.node.empty() || heard.id.incarnation == 0) {
    throw std::runtime_error("it gave no node name or no incarnation");
  }
  if (heard.worker_address.empty() || heard.frame_bytes_max == 0 || heard.credit_frames == 0) {
    throw std::runtime_error("it gave no worker address or no limits");
  }
}

std::vector<std::byte> join(const preamble& first, std::span<const std::byte> body) {
  std::vector<std::byte> result(sizeof(first) + body.size());
  std::memcpy(result.data(), &first, sizeof(first));
  std::ranges::copy(body, result.begin() + sizeof(first));
  return result;
}

}  // namespace

token_proof::token_proof(const std::string& token)
    : dialer(prove("eldr dialer", token)), listener(prove("eldr listener", token)) {}

preamble seal(preamble_kind kind, std::span<const std::byte> body) noexcept {
  preamble result;
  result.kind = kind;
  result.length = static_cast<std::uint32_t>(body.size());
  result.checksum = XXH3_64bits(body.data(), body.size());
  return result;
}

std::vector<std::byte> encode_greeting(preamble_kind kind, const greeting& content,
                                       const digest& token) {
  capnp::MallocMessageBuilder arena;
  if (kind == preamble_kind::hello) {
    write(arena.initRoot<wire::Hello>(), content);
  } else {
    auto welcome = arena.initRoot<wire::Welcome>();
    welcome.setRefused(content.refused);
    if (content.refused.empty()) {
      write(welcome, content);
    }
  }
  const auto words = capnp::messageToFlatArray(arena);
  const auto body = std::as_bytes(std::span(words.begin(), words.size()));
  if (body.size() > bootstrap_bytes_max) {
    throw std::runtime_error("what this node has to say of itself exceeds " +
                             std::to_string(bootstrap_bytes_max) +
                             " bytes; register fewer memory regions");
  }
  auto first = seal(kind, body);
  first.token = token;
  return join(first, body);
}

std::vector<std::byte> encode_refusal(preamble_kind kind) {
  preamble only;
  only.kind = kind;
  return join(only, {});
}

preamble decode_preamble(std::span<const std::byte> bytes) {
  preamble result;
  if (bytes.size() < sizeof(result)) {
    throw std::runtime_error("truncated preamble");
  }
  std::memcpy(&result, bytes.data(), sizeof(result));
  if (result.magic != preamble::magic_value) {
    throw std::runtime_error("it does not speak this protocol");
  }
  return result;
}

greeting decode_greeting(const preamble& before, std::span<const std::byte> body) {
  if (body.size() != before.length || before.length % sizeof(capnp::word) != 0 ||
      before.length > bootstrap_bytes_max ||
      XXH3_64bits(body.data(), body.size()) != before.checksum) {
    throw std::runtime_error("its greeting is damaged");
  }
  std::vector<capnp::word> words(body.size() / sizeof(capnp::word));
  if (!words.empty()) {
    std::memcpy(words.data(), body.data(), body.size());
  }
  try {
    capnp::ReaderOptions limits;
    limits.traversalLimitInWords = 4 * words.size() + 64;
    limits.nestingLimit = 8;
    capnp::FlatArrayMessageReader reader(kj::arrayPtr(words.data(), words.size()), limits);
    greeting heard;
    if (before.kind == preamble_kind::hello) {
      heard = read(reader.getRoot<wire::Hello>());
    } else {
      const auto welcome = reader.getRoot<wire::Welcome>();
      heard.refused = from_text(welcome.getRefused());
      if (!heard.refused.empty()) {
        return heard;
      }
      heard = read(welcome);
    }
    check(heard);
    return heard;
  } catch (const kj::Exception& error) {
    throw std::runtime_error("its greeting cannot be read (" +
                             std::string(error.getDescription().cStr()) + ")");
  }
}

std::uint64_t session_nonce(std::uint64_t dialer_half, std::uint64_t listener_half) noexcept {
  const auto mixed = dialer_half ^ std::rotl(listener_half * 0x9e3779b97f4a7c15u, 31);
  return mixed == 0 ? 1 : mixed;
}

}  // namespace eldr::messages
