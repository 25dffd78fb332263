/// Bytes on the wire, and the pure parts of the transports: what is well-formed comes through, what
/// is not is refused, and nothing crashes.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "messages/bootstrap.hpp"
#include "messages/credit.hpp"
#include "messages/get_plan.hpp"
#include "messages/mpsc_stack.hpp"
#include "messages/session_table.hpp"
#include "messages/sha256.hpp"
#include "messages/wire_header.hpp"
#include "tests/unit/messages/world.hpp"

namespace eldr::messages {
namespace {

using bytes = std::vector<std::byte>;

bytes to_bytes(const std::string& text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

std::string hex(const digest& value) {
  std::string result;
  for (const auto byte : value) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", std::to_integer<unsigned>(byte));
    result += text;
  }
  return result;
}

// --- sha256 -------------------------------------------------------------------------------------

TEST(sha256, matches_the_standards_examples) {
  EXPECT_EQ(hex(sha256(to_bytes(""))),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(to_bytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(to_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(to_bytes(std::string(1'000'000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(sha256, comparison_finds_any_difference) {
  const auto a = sha256(to_bytes("x"));
  EXPECT_TRUE(equal_in_constant_time(a, a));
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto b = a;
    b[i] ^= std::byte{1};
    EXPECT_FALSE(equal_in_constant_time(a, b));
  }
}

// --- frame headers ------------------------------------------------------------------------------

/// A valid frame as it would arrive: header and payload apart, the payload aligned.
struct raw_frame {
  bytes header;
  std::vector<std::uint64_t> payload;

  std::span<const std::byte> payload_bytes() const { return std::as_bytes(std::span(payload)); }
};

raw_frame encode(outgoing& message) {
  encoded_header header;
  header.fixed.source = 11;
  header.fixed.destination = 22;
  header.fixed.nonce = 33;
  header.fixed.sequence = 1;
  raw_frame result;
  for (const auto segment : message.arena().getSegmentsForOutput()) {
    header.segment_words[header.fixed.segment_count++] = static_cast<std::uint32_t>(segment.size());
    const auto before = result.payload.size();
    result.payload.resize(before + segment.size());
    std::memcpy(result.payload.data() + before, segment.begin(), segment.asBytes().size());
  }
  const auto* raw = static_cast<const std::byte*>(header.data());
  result.header.assign(raw, raw + header.bytes());
  return result;
}

std::uint64_t read_all(wire::Message::Reader message) {
  std::uint64_t sum = message.isSubmit() ? message.getSubmit().getLabel().size() : 0;
  if (message.isSubmit()) {
    for (const auto token : message.getSubmit().getTokens()) {
      sum += token;
    }
    for (const auto node : message.getSubmit().getAvoid()) {
      sum += node.size();
    }
  }
  return sum + message.totalSize().wordCount;
}

TEST(frame_header, round_trip_in_one_and_in_many_segments) {
  for (const std::uint32_t first_segment : {2000u, 16u}) {
    const auto message = test::bulk(7, 500, first_segment);
    const auto frame = encode(*message);
    decoded_frame decoded;
    ASSERT_EQ(decode_frame(frame.header, frame.payload_bytes(), 1u << 20, decoded), nullptr);
    EXPECT_EQ(decoded.fixed.nonce, 33u);
    EXPECT_EQ(nonce_of(frame.header), 33u);
    EXPECT_EQ(decoded.parts().size() == 1, first_segment == 2000);
    const message_view view(decoded.parts());
    EXPECT_EQ(test::number_of(view.root()), 7u);
    EXPECT_EQ(view.root().getSubmit().getTokens().size(), 1000u);
  }
}

TEST(frame_header, every_truncation_is_refused) {
  const auto message = test::bulk(7, 40, 16);
  const auto frame = encode(*message);
  decoded_frame decoded;
  for (std::size_t length = 0; length < frame.header.size(); ++length) {
    const std::span header(frame.header.data(), length);
    EXPECT_NE(decode_frame(header, frame.payload_bytes(), 1u << 20, decoded), nullptr) << length;
  }
  for (std::size_t length = 0; length < frame.payload_bytes().size(); ++length) {
    EXPECT_NE(decode_frame(frame.header, frame.payload_bytes().first(length), 1u << 20, decoded),
              nullptr);
  }
  EXPECT_NE(decode_frame(frame.header, frame.payload_bytes(), 64, decoded), nullptr);
}

TEST(frame_header, nonsense_is_refused) {
  const auto good = encode(*test::bulk(1));
  const auto refused = [&](const std::function<void(frame_header&)>& change) {
    auto frame = good;
    frame_header fixed;
    std::memcpy(&fixed, frame.header.data(), sizeof(fixed));
    change(fixed);
    std::memcpy(frame.header.data(), &fixed, sizeof(fixed));
    decoded_frame decoded;
    return decode_frame(frame.header, frame.payload_bytes(), 1u << 20, decoded) != nullptr;
  };
  EXPECT_FALSE(refused([](frame_header&) {}));
  EXPECT_TRUE(refused([](frame_header& h) { h.magic ^= 1; }));
  EXPECT_TRUE(refused([](frame_header& h) { h.unused = 1; }));
  EXPECT_TRUE(refused([](frame_header& h) { h.kind = frame_kind::credit; }));
  EXPECT_TRUE(refused([](frame_header& h) { h.kind = static_cast<frame_kind>(9); }));
  EXPECT_TRUE(refused([](frame_header& h) { h.cls = static_cast<traffic>(2); }));
  EXPECT_TRUE(refused([](frame_header& h) { h.segment_count = 0; }));
  EXPECT_TRUE(refused([](frame_header& h) { h.segment_count = 3; }));
  EXPECT_TRUE(refused([](frame_header& h) { h.segment_count = 0xffff; }));
}

TEST(frame_header, mutations_never_crash) {
  std::mt19937_64 random(1);
  const auto one = encode(*test::bulk(7, 60));
  const auto many = encode(*test::bulk(7, 60, 8));
  std::uint64_t accepted = 0;
  std::uint64_t thrown = 0;
  for (int round = 0; round < 40'000; ++round) {
    auto frame = round % 2 == 0 ? one : many;
    auto* payload = reinterpret_cast<std::byte*>(frame.payload.data());
    const auto payload_size = frame.payload.size() * 8;
    for (auto changes = 1 + random() % 4; changes > 0; --changes) {
      // Mostly the payload's pointers: those of the header are refused at once.
      auto& target = random() % 4 == 0 ? frame.header[random() % frame.header.size()]
                                       : payload[random() % payload_size];
      target = static_cast<std::byte>(random());
    }
    decoded_frame decoded;
    if (decode_frame(frame.header, frame.payload_bytes(), 1u << 20, decoded) != nullptr) {
      continue;
    }
    try {
      const message_view view(decoded.parts());
      read_all(view.root());
      ++accepted;
    } catch (const kj::Exception&) {
      ++thrown;
    }
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_GT(thrown, 0u);
}

TEST(frame_header, what_is_read_of_one_message_is_bounded) {
  // Pointers may all lead to the same bytes: following them would take far longer than sending
  // them did. The limit counts every read.
  const auto frame = encode(*test::bulk(7, 200));
  decoded_frame decoded;
  ASSERT_EQ(decode_frame(frame.header, frame.payload_bytes(), 1u << 20, decoded), nullptr);
  const message_view view(decoded.parts());
  int reads = 0;
  EXPECT_THROW(
      {
        for (; reads < 1'000'000; ++reads) {
          read_all(view.root());
        }
      },
      kj::Exception);
  EXPECT_GT(reads, 10);  // Handlers that look more than once are well within it.
}

// --- reads --------------------------------------------------------------------------------------

TEST(read_header, only_well_formed_ones_pass) {
  read_header good;
  good.length = 100;
  const auto check = [](const read_header& header, std::size_t payload) {
    read_header result;
    return decode_read(std::as_bytes(std::span(&header, 1)), payload, result) == nullptr;
  };
  EXPECT_TRUE(check(good, 0));
  EXPECT_FALSE(check(good, 100));  // A request has no payload.
  auto data = good;
  data.kind = read_kind::data;
  EXPECT_TRUE(check(data, 100));
  EXPECT_FALSE(check(data, 99));
  auto odd = good;
  odd.kind = static_cast<read_kind>(3);
  EXPECT_FALSE(check(odd, 0));
  odd = good;
  odd.magic = 0;
  EXPECT_FALSE(check(odd, 0));
  odd = good;
  odd.length = 0;
  EXPECT_FALSE(check(odd, 0));
  read_header result;
  for (std::size_t length = 0; length < sizeof(good); ++length) {
    EXPECT_NE(decode_read(std::as_bytes(std::span(&good, 1)).first(length), 0, result), nullptr);
  }
}

// --- bootstrap ----------------------------------------------------------------------------------

greeting sample_greeting() {
  greeting result;
  result.id = {"prefill-1", "prefill", 42, 5, 6, "127.0.0.1:7000"};
  result.regions = {{0, 4096, 0x7000'0000'0000, bytes(20, std::byte{1})},
                    {1, 8192, 0x7100'0000'0000, bytes(30, std::byte{2})}};
  result.worker_address = bytes(100, std::byte{3});
  result.nonce = 99;
  result.frame_bytes_max = 1u << 20;
  result.credit_frames = 256;
  return result;
}

TEST(bootstrap, greetings_come_through) {
  const token_proof proof("secret");
  for (const auto kind : {preamble_kind::hello, preamble_kind::welcome}) {
    const auto sent = sample_greeting();
    const auto wire = encode_greeting(kind, sent, proof.dialer);
    const auto first = decode_preamble(wire);
    EXPECT_EQ(first.kind, kind);
    EXPECT_TRUE(equal_in_constant_time(first.token, proof.dialer));
    const auto heard = decode_greeting(first, std::span(wire).subspan(sizeof(preamble)));
    EXPECT_EQ(heard.id.node, "prefill-1");
    EXPECT_EQ(heard.id.address, sent.id.address);
    EXPECT_EQ(heard.id.incarnation, 42u);
    ASSERT_EQ(heard.regions.size(), 2u);
    EXPECT_EQ(heard.regions[1].address, sent.regions[1].address);
    EXPECT_EQ(heard.regions[1].key, sent.regions[1].key);
    EXPECT_EQ(heard.worker_address, sent.worker_address);
    EXPECT_EQ(heard.nonce, 99u);
    EXPECT_EQ(heard.credit_frames, 256u);
  }
}

TEST(bootstrap, refusals_carry_their_reason) {
  greeting refusal;
  refusal.refused = "no room";
  const auto wire = encode_greeting(preamble_kind::welcome, refusal, {});
  EXPECT_EQ(
      decode_greeting(decode_preamble(wire), std::span(wire).subspan(sizeof(preamble))).refused,
      "no room");
  EXPECT_EQ(decode_preamble(encode_refusal(preamble_kind::wrong_token)).kind,
            preamble_kind::wrong_token);
}

TEST(bootstrap, each_side_has_a_proof_of_its_own) {
  const token_proof proof("secret");
  EXPECT_FALSE(equal_in_constant_time(proof.dialer, proof.listener));
  EXPECT_FALSE(equal_in_constant_time(proof.dialer, token_proof("Secret").dialer));
}

TEST(bootstrap, incomplete_greetings_are_refused) {
  const auto refused = [](const std::function<void(greeting&)>& change) {
    auto sent = sample_greeting();
    change(sent);
    const auto wire = encode_greeting(preamble_kind::hello, sent, {});
    try {
      decode_greeting(decode_preamble(wire), std::span(wire).subspan(sizeof(preamble)));
      return false;
    } catch (const std::runtime_error&) {
      return true;
    }
  };
  EXPECT_FALSE(refused([](greeting&) {}));
  EXPECT_TRUE(refused([](greeting& g) { g.id.node.clear(); }));
  EXPECT_TRUE(refused([](greeting& g) { g.id.incarnation = 0; }));
  EXPECT_TRUE(refused([](greeting& g) { g.worker_address.clear(); }));
  EXPECT_TRUE(refused([](greeting& g) { g.credit_frames = 0; }));
  EXPECT_TRUE(refused([](greeting& g) { g.frame_bytes_max = 0; }));
  EXPECT_TRUE(refused([](greeting& g) { g.regions[1].id = 5; }));
  EXPECT_TRUE(refused([](greeting& g) { g.regions[1].bytes = ~0ull; }));
  EXPECT_TRUE(refused([](greeting& g) { g.regions.resize(regions_max + 1); }));
}

TEST(bootstrap, damaged_bytes_are_refused_and_never_crash) {
  std::mt19937_64 random(2);
  const auto wire = encode_greeting(preamble_kind::hello, sample_greeting(), {});
  for (int round = 0; round < 20'000; ++round) {
    auto changed = wire;
    const auto at = random() % changed.size();
    const auto value = static_cast<std::byte>(random());
    const bool same = changed[at] == value;
    changed[at] = value;
    const bool in_body = at >= sizeof(preamble);
    try {
      const auto first = decode_preamble(changed);
      decode_greeting(first, std::span(changed).subspan(sizeof(preamble)));
      EXPECT_TRUE(same || !in_body);  // The checksum covers the body.
    } catch (const std::runtime_error&) {
    }
  }
  for (std::size_t length = 0; length < wire.size(); ++length) {
    const std::span cut(wire.data(), length);
    EXPECT_THROW(
        {
          const auto first = decode_preamble(cut);
          decode_greeting(first, cut.subspan(sizeof(preamble)));
        },
        std::runtime_error);
  }
}

TEST(bootstrap, hostile_bodies_with_a_right_checksum_never_crash) {
  std::mt19937_64 random(3);
  const auto wire = encode_greeting(preamble_kind::hello, sample_greeting(), {});
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto body = bytes(wire.begin() + sizeof(preamble), wire.end());
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      body[random() % body.size()] = static_cast<std::byte>(random());
    }
    try {
      accepted += decode_greeting(seal(preamble_kind::hello, body), body).id.node.empty() ? 0 : 1;
    } catch (const std::runtime_error&) {
    }
  }
  EXPECT_GT(accepted, 0);
}

// --- plans, credits, queues ---------------------------------------------------------------------

TEST(get_plan, merges_neighbours_and_cuts_what_is_large) {
  bytes local(1000);
  auto* to = local.data();
  const auto plan = plan_get(
      {{0, to, 10}, {10, to + 10, 20}, {30, to + 30, 0}, {30, to + 40, 5}, {100, to + 45, 250}},
      100);
  ASSERT_EQ(plan.size(), 5u);
  EXPECT_EQ(plan[0].length, 30u);
  EXPECT_EQ(plan[1].remote_offset, 30u);
  EXPECT_EQ(plan[1].local, to + 40);
  EXPECT_EQ(plan[2].length, 100u);
  EXPECT_EQ(plan[4].length, 50u);
  EXPECT_EQ(plan[4].remote_offset, 300u);
}

TEST(get_plan, covers_every_byte_once) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    bytes remote(5000);
    bytes local(5000);
    bytes expected(5000);
    for (auto& each : remote) {
      each = static_cast<std::byte>(random());
    }
    std::vector<get_range> ranges;
    std::size_t at = 0;
    while (at < 4500) {
      const auto length = random() % 200;
      const auto offset = random() % 2 == 0 ? at : random() % 4000;
      ranges.push_back({offset, local.data() + at, length});
      std::memcpy(expected.data() + at, remote.data() + offset, length);
      at += length + random() % 2 * (random() % 50);
    }
    ASSERT_TRUE(within(ranges, 5000));
    for (const auto& piece : plan_get(ranges, 1 + random() % 300)) {
      ASSERT_GT(piece.length, 0u);
      std::memcpy(piece.local, remote.data() + piece.remote_offset, piece.length);
    }
    EXPECT_EQ(local, expected);
  }
}

TEST(credits, the_window_is_never_exceeded_and_never_lost) {
  std::mt19937_64 random(5);
  for (const std::uint32_t window : {1u, 2u, 3u, 4u, 5u, 8u, 100u}) {
    send_credits lent(window);
    owed_credits owed(window);
    std::uint32_t held = 0;
    std::uint32_t sent = 0;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 2 == 0 && !lent.empty()) {
        lent.take();
        ++held;
        ++sent;
        ASSERT_LE(held, window);
      } else if (held > 0) {
        --held;
        owed.add();
        if (owed.due()) {
          ASSERT_TRUE(lent.grant(owed.take()));
        }
      }
      // Whoever has no credit waits for frames that are still held, not for a lost message.
      ASSERT_TRUE(!lent.empty() || held > 0);
    }
    EXPECT_GT(sent, 500u);
    EXPECT_FALSE(lent.grant(window + 1));
  }
}

TEST(session_table, shares_of_a_queue_come_back) {
  session_table table;
  const auto id = table.reserve();
  table.open(id, 100);
  auto& slot = table.slot_of(id);
  transport_limits limits;
  limits.queue_frames_max = 2;
  limits.reserved_frames_max = 1;
  {
    const queue_share first(slot, traffic::bulk, 50);
    EXPECT_FALSE(first.exceeds(limits));
    const queue_share second(slot, traffic::bulk, 51);
    EXPECT_TRUE(second.exceeds(limits));
    const queue_share urgent(slot, traffic::reserved, 1'000'000);
    EXPECT_FALSE(urgent.exceeds(limits));
    EXPECT_TRUE(queue_share(slot, traffic::reserved, 1).exceeds(limits));
  }
  EXPECT_EQ(slot.bulk_bytes, 0u);
  EXPECT_EQ(slot.bulk_frames, 0u);
  EXPECT_EQ(slot.reserved_frames, 0u);
}

TEST(session_table, ids_are_never_used_twice_and_slots_are) {
  session_table table;
  std::map<session_id, int> seen;
  for (std::uint32_t i = 0; i < 3 * sessions_max; ++i) {
    const auto id = table.reserve();
    ASSERT_NE(id, 0u);
    EXPECT_EQ(++seen[id], 1);
    EXPECT_FALSE(table.is_open(id));
    table.open(id, 1);
    EXPECT_TRUE(table.is_open(id));
    EXPECT_TRUE(table.close(id));
    EXPECT_FALSE(table.close(id));
    table.release(id);
  }
  for (std::uint32_t i = 0; i < sessions_max; ++i) {
    EXPECT_NE(table.reserve(), 0u);
  }
  EXPECT_EQ(table.reserve(), 0u);
}

TEST(mpsc_stack, keeps_the_order_of_each_thread_and_loses_nothing) {
  struct item {
    item* next = nullptr;
    int thread = 0;
    int number = 0;
  };
  constexpr int each = 20'000;
  std::vector<std::vector<item>> items(3, std::vector<item>(each));
  mpsc_stack<item> stack;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < each; ++i) {
        auto& one = items[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)];
        one.thread = t;
        one.number = i;
        stack.push(&one);
      }
    });
  }
  std::vector<int> expected(3);
  int total = 0;
  while (total < 3 * each) {
    for (auto* one = stack.take_all(); one != nullptr; one = one->next) {
      ASSERT_EQ(one->number, expected[static_cast<std::size_t>(one->thread)]++);
      ++total;
    }
  }
  threads.clear();
  EXPECT_TRUE(stack.empty());
}

}  // namespace
}  // namespace eldr::messages
