/// The UCX transport against what processes and networks do: hostile bytes, silence, death.

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "tests/unit/messages/contract_worlds.hpp"
#include "tests/unit/messages/raw_peer.hpp"
#include "tests/unit/messages/world.hpp"

extern char** environ;

namespace eldr::messages::test {
namespace {

class ucx_transport_test : public testing::Test {
 protected:
  explicit ucx_transport_test(ucx_options options = {}) : here(std::move(options)) {}

  ucx_world here;
  std::unique_ptr<node> b = here.add("b", {.region_bytes = 1u << 20});

  /// The node lives if others can open a session with it.
  void expect_alive() {
    const auto friendly = here.add("friendly");
    EXPECT_TRUE(here.open(*friendly, *b));
    friendly->net->stop();
  }
  std::uint64_t refused() const { return b->net->counters().handshakes_refused; }
};

byte_vector text(const std::string& what) {
  const auto view = std::as_bytes(std::span(what));
  return {view.begin(), view.end()};
}

byte_vector payload_of(outgoing& message) {
  byte_vector result;
  for (const auto segment : message.arena().getSegmentsForOutput()) {
    const auto bytes = std::as_bytes(std::span(segment.begin(), segment.size()));
    result.insert(result.end(), bytes.begin(), bytes.end());
  }
  return result;
}

byte_vector hello(const std::string& token) {
  greeting mine;
  mine.id = {"raw", "decode", 666, 0, 0, ""};
  mine.worker_address = byte_vector(64);
  mine.frame_bytes_max = 1000;
  mine.credit_frames = 10;
  return encode_greeting(preamble_kind::hello, mine, token_proof(token).dialer);
}

// --- the bootstrap port -------------------------------------------------------------------------

TEST_F(ucx_transport_test, garbage_at_the_bootstrap_port_is_hung_up_on) {
  raw_connection link(b->address());
  link.write(text("GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\nUser-Agent: curious\r\n\r\n"));
  EXPECT_TRUE(link.hung_up());
  EXPECT_TRUE(here.run_until([&] { return refused() == 1; }));
  expect_alive();
}

TEST_F(ucx_transport_test, a_wrong_token_is_told_so_before_anything_is_parsed) {
  raw_connection link(b->address());
  auto bytes = hello("guessed");
  bytes.resize(sizeof(preamble));  // No body: it must not be waited for.
  link.write(bytes);
  byte_vector answer;
  ASSERT_TRUE(link.read(sizeof(preamble), answer));
  const auto told = decode_preamble(answer);
  EXPECT_EQ(told.kind, preamble_kind::wrong_token);
  EXPECT_TRUE(equal_in_constant_time(told.token, digest{}));  // Proves nothing to strangers.
  EXPECT_TRUE(link.hung_up());
}

TEST_F(ucx_transport_test, another_protocol_version_is_told_ours) {
  raw_connection link(b->address());
  auto bytes = hello("test");
  const std::uint32_t version = protocol_version + 1;
  std::memcpy(bytes.data() + offsetof(preamble, version), &version, sizeof(version));
  link.write(bytes);
  byte_vector answer;
  ASSERT_TRUE(link.read(sizeof(preamble), answer));
  EXPECT_EQ(decode_preamble(answer).kind, preamble_kind::other_version);
  EXPECT_EQ(decode_preamble(answer).version, protocol_version);
  EXPECT_TRUE(link.hung_up());
}

TEST_F(ucx_transport_test, a_dialer_names_the_version_that_it_met) {
  const auto listener = listen_at("127.0.0.1:0");
  std::jthread old_node([&] {
    file_descriptor fd;
    while (!(fd = accept_from(listener))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    byte_stream stream(std::move(fd));
    preamble answer;
    answer.version = 77;
    answer.kind = preamble_kind::other_version;
    stream.write(std::as_bytes(std::span(&answer, 1)));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  b->net->dial(to_string(local_address(listener)));
  ASSERT_TRUE(here.run_until([&] { return !b->seen.dial_errors().empty(); }));
  EXPECT_NE(b->seen.dial_errors()[0].find("version 77"), std::string::npos)
      << b->seen.dial_errors()[0];
}

TEST_F(ucx_transport_test, a_listener_must_prove_the_token_too) {
  const auto listener = listen_at("127.0.0.1:0");
  std::jthread impostor([&] {
    file_descriptor fd;
    while (!(fd = accept_from(listener))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    byte_stream stream(std::move(fd));
    while (stream.received().size() < sizeof(preamble)) {
      stream.read_up_to(sizeof(preamble));
    }
    auto echoed = decode_preamble(stream.received());  // It sends the dialer's proof back.
    echoed.kind = preamble_kind::welcome;
    stream.write(std::as_bytes(std::span(&echoed, 1)));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  b->net->dial(to_string(local_address(listener)));
  ASSERT_TRUE(here.run_until([&] { return !b->seen.dial_errors().empty(); }));
  EXPECT_NE(b->seen.dial_errors()[0].find("did not present the cluster's token"),
            std::string::npos);
}

TEST_F(ucx_transport_test, truncated_and_damaged_greetings_end_the_connection_only) {
  const auto good = hello("test");
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    raw_connection link(b->address());
    auto bytes = good;
    if (round % 2 == 0) {
      bytes.resize(random() % bytes.size());
    } else {
      // Damage to the body or its length; a worker address that passed the checksum is believed.
      const auto at = offsetof(preamble, length) + random() % (bytes.size() - 16);
      bytes[at] = ~bytes[at];
    }
    link.write(bytes);
  }
  EXPECT_TRUE(here.run_until([&] { return refused() == 60; }));
  expect_alive();
}

TEST_F(ucx_transport_test, an_absurd_length_is_refused) {
  raw_connection link(b->address());
  auto bytes = hello("test");
  const std::uint32_t length = bootstrap_bytes_max + 8;
  std::memcpy(bytes.data() + offsetof(preamble, length), &length, sizeof(length));
  link.write(bytes);
  EXPECT_TRUE(link.hung_up());
}

TEST_F(ucx_transport_test, a_bad_address_is_answered_with_a_sentence) {
  for (const std::string address : {"nonsense", "127.0.0.1:port", "127.0.0.1:70000", ":1", ""}) {
    const auto before = b->seen.dial_errors().size();
    b->net->dial(address);
    ASSERT_TRUE(here.run_until([&] { return b->seen.dial_errors().size() > before; })) << address;
    EXPECT_NE(b->seen.dial_errors().back().find("host:port"), std::string::npos);
  }
  identity id;
  id.node = "c";
  id.incarnation = 1;
  id.address = "192.0.2.77:0";  // Documentation range: nobody's.
  const auto other = here.make(id, "test");
  recorder seen;
  EXPECT_THROW(other->start(seen), std::runtime_error);
}

TEST_F(ucx_transport_test, a_name_is_resolved) {
  const auto a = here.add("a", {.listens = false});
  const auto port = split_address(b->address()).second;
  a->net->dial("localhost:" + port);
  EXPECT_TRUE(here.run_until(
      [&] { return !a->seen.opens().empty() || !a->seen.dial_errors().empty(); }));
  EXPECT_EQ(a->seen.opens().size(), 1u);
}

TEST_F(ucx_transport_test, options_that_make_no_sense_are_refused) {
  identity id;
  id.node = "c";
  id.incarnation = 1;
  EXPECT_THROW(make_ucx_transport(id, {}), std::runtime_error);
  ucx_options options;
  options.token = "t";
  EXPECT_NO_THROW(make_ucx_transport(id, options));
  options.limits.credit_frames = 0;
  EXPECT_THROW(make_ucx_transport(id, options), std::runtime_error);
  id.incarnation = 0;
  options.limits.credit_frames = 4;
  EXPECT_THROW(make_ucx_transport(id, options), std::runtime_error);
}

class short_handshakes : public ucx_transport_test {
 protected:
  static ucx_options options() {
    ucx_options result;
    result.limits.dial_timeout_ms = 150;
    return result;
  }
  short_handshakes() : ucx_transport_test(options()) {}
};

TEST_F(short_handshakes, whoever_says_nothing_or_little_is_hung_up_on) {
  raw_connection silent(b->address());
  raw_connection slow(b->address());
  std::atomic<bool> over{false};
  std::jthread trickle([&] {
    const auto bytes = hello("test");
    for (std::size_t i = 0; i < bytes.size() && !over; ++i) {
      slow.write(std::span(bytes).subspan(i, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  EXPECT_TRUE(here.run_until([&] { return refused() == 2; }));
  over = true;
  EXPECT_TRUE(silent.hung_up());
}

TEST_F(ucx_transport_test, silent_connections_cannot_keep_peers_out) {
  std::vector<std::unique_ptr<raw_connection>> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(std::make_unique<raw_connection>(b->address()));
  }
  expect_alive();
}

TEST_F(short_handshakes, a_dialer_does_not_wait_for_ever) {
  const auto mute = listen_at("127.0.0.1:0");
  b->net->dial(to_string(local_address(mute)));
  ASSERT_TRUE(here.run_until([&] { return !b->seen.dial_errors().empty(); }));
  EXPECT_NE(b->seen.dial_errors()[0].find("no answer within 150 ms"), std::string::npos);
}

// --- a peer that misbehaves in its session ------------------------------------------------------

class hostile_peer : public ucx_transport_test {
 protected:
  raw_peer raw{b->address(), "test"};
  byte_vector good = payload_of(*bulk(1));

  void SetUp() override {
    raw.say_first_frame();
    ASSERT_TRUE(run_until([&] { return b->seen.opens().size() == 1; }));
  }
  bool run_until(const std::function<bool()>& condition) {
    return here.run_until([&] {
      raw.progress();
      return condition();
    });
  }
  void expect_malformed() {
    ASSERT_TRUE(run_until([&] { return b->seen.ends().size() == 1; }));
    EXPECT_EQ(b->seen.ends()[0].reason, end_reason::malformed) << b->seen.ends()[0].detail;
    EXPECT_EQ(b->net->counters().malformed, 1u);
    EXPECT_TRUE(b->seen.violations().empty());
    expect_alive();
  }
};

TEST_F(hostile_peer, good_frames_are_taken) {
  raw.send(raw.header(good.size()), good);
  ASSERT_TRUE(run_until([&] { return b->seen.count() == 1; }));
}

TEST_F(hostile_peer, a_gap_in_the_sequence_ends_the_session) {
  raw.header(8);
  raw.send(raw.header(good.size()), good);
  expect_malformed();
  EXPECT_EQ(b->seen.count(), 0u);
}

TEST_F(hostile_peer, a_repeated_frame_ends_the_session) {
  const auto header = raw.header(good.size());
  raw.send(header, good);
  raw.send(header, good);
  expect_malformed();
  EXPECT_EQ(b->seen.count(), 1u);
}

TEST_F(hostile_peer, a_bad_magic_ends_the_session) {
  auto header = raw.header(good.size());
  header.fixed.magic = 1;
  raw.send(header, good);
  expect_malformed();
}

TEST_F(hostile_peer, another_incarnation_ends_the_session) {
  auto header = raw.header(good.size());
  header.fixed.destination ^= 1;
  raw.send(header, good);
  expect_malformed();
}

TEST_F(hostile_peer, a_segment_table_that_lies_ends_the_session) {
  auto header = raw.header(good.size());
  header.segment_words[0] = 0x7fffffff;
  raw.send(header, good);
  expect_malformed();
}

TEST_F(hostile_peer, a_message_without_a_root_ends_the_session) {
  const byte_vector noise(64, std::byte{0xff});
  raw.send(raw.header(noise.size()), noise);
  expect_malformed();
}

TEST_F(hostile_peer, credits_out_of_nowhere_end_the_session) {
  auto header = raw.header(good.size());
  header.fixed.credits = 1;
  raw.send(header, good);
  expect_malformed();
}

TEST_F(hostile_peer, sending_without_credit_ends_the_session) {
  b->seen.hold(true);
  for (int i = 0; i < 300 && b->seen.ends().empty(); ++i) {
    raw.send(raw.header(good.size()), good);
  }
  expect_malformed();
  EXPECT_LE(b->seen.held(), 256u);
  b->seen.release();
}

TEST_F(hostile_peer, a_rendezvous_is_refused) {
  const byte_vector large(256u << 10);
  const auto header = raw.header(large.size());
  // Posted and left alone: the node will not fetch it.
  raw.send_raw(frame_am_id, {static_cast<const std::byte*>(header.data()), header.bytes()}, large,
               UCP_AM_SEND_FLAG_RNDV);
  expect_malformed();
}

TEST_F(hostile_peer, frames_larger_than_agreed_end_the_session) {
  const byte_vector large((1u << 20) + 8);
  raw.send(raw.header(large.size()), large);
  expect_malformed();
}

TEST_F(hostile_peer, frames_of_unknown_sessions_are_dropped_and_counted) {
  auto header = raw.header(good.size());
  header.fixed.nonce ^= 1;
  raw.send(header, good);
  raw.send_raw(frame_am_id, text("short"), {});
  ASSERT_TRUE(run_until([&] { return b->net->counters().late_frames_dropped == 2; }));
  EXPECT_TRUE(b->seen.ends().empty());
}

TEST_F(hostile_peer, reads_outside_the_region_end_the_session) {
  read_header asked;
  asked.source = 666;
  asked.destination = raw.theirs().id.incarnation;
  asked.nonce = raw.header(0).fixed.nonce;
  asked.offset = (1u << 20) - 4;
  asked.length = 8;
  raw.send_raw(read_am_id, std::as_bytes(std::span(&asked, 1)), {});
  expect_malformed();
}

TEST_F(hostile_peer, bytes_that_nobody_asked_for_end_the_session) {
  read_header data;
  data.kind = read_kind::data;
  data.source = 666;
  data.destination = raw.theirs().id.incarnation;
  data.nonce = raw.header(0).fixed.nonce;
  data.length = 8;
  data.ticket = 1;
  raw.send_raw(read_am_id, std::as_bytes(std::span(&data, 1)), byte_vector(8));
  expect_malformed();
}

TEST_F(hostile_peer, noise_on_the_bootstrap_connection_ends_the_session) {
  raw.link().write(byte_vector(100, std::byte{0x55}));
  expect_malformed();
}

TEST_F(hostile_peer, hanging_up_is_the_end) {
  raw.link() = raw_connection(b->address());
  ASSERT_TRUE(run_until([&] { return b->seen.ends().size() == 1; }));
  EXPECT_EQ(b->seen.ends()[0].reason, end_reason::closed_by_peer);
}

TEST_F(ucx_transport_test, random_frames_never_hurt_the_node) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 25; ++round) {
    raw_peer raw(b->address(), "test");
    raw.say_first_frame();
    for (int i = 0; i < 20; ++i) {
      const auto message = bulk(random(), random() % 50, random() % 2 == 0 ? 8 : 0);
      auto payload = payload_of(*message);
      auto header = raw.header(payload.size());
      auto* bytes = reinterpret_cast<std::byte*>(&header);
      for (auto changes = random() % 3; changes > 0; --changes) {
        if (random() % 4 == 0) {
          bytes[random() % sizeof(frame_header)] ^= static_cast<std::byte>(random());
        } else {
          payload[random() % payload.size()] ^= static_cast<std::byte>(random());
        }
      }
      const auto length = std::min<std::size_t>(header.bytes(), sizeof(header));
      raw.send_raw(random() % 8 == 0 ? read_am_id : frame_am_id, {bytes, length}, payload);
    }
  }
  EXPECT_TRUE(b->seen.violations().empty());
  expect_alive();
}

// --- processes ----------------------------------------------------------------------------------

/// The helper program, killed at the latest with this object.
class child_process {
 public:
  child_process(const std::string& address, const std::string& network) {
    std::string program = ELDR_TEST_PEER;
    std::string token = "test";
    std::string where = address;
    std::string how = network;
    char* arguments[] = {program.data(), where.data(), token.data(), how.data(), nullptr};
    if (::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ) != 0) {
      throw std::runtime_error("cannot start " + program);
    }
  }
  ~child_process() { kill(SIGKILL); }
  void kill(int signal) {
    if (pid_ > 0) {
      ::kill(pid_, signal);
      if (signal == SIGKILL) {
        ::waitpid(std::exchange(pid_, -1), nullptr, 0);
      }
    }
  }

 private:
  pid_t pid_ = -1;
};

class other_process : public testing::TestWithParam<std::string> {
 protected:
  static ucx_options options() {
    ucx_options result;
    result.shared_memory = GetParam() == "shm";
    return result;
  }
  ucx_world here{options()};
  std::unique_ptr<node> b = here.add("b");
};

TEST_P(other_process, its_death_is_noticed_at_once_and_reads_of_it_fail) {
  child_process child(b->address(), GetParam());
  ASSERT_TRUE(here.run_until([&] { return b->seen.count() == 1; }));
  std::vector<std::byte> local(64u << 20);
  std::atomic<int> first{-1};
  b->net->get(b->last_session(), 0, {{0, local.data(), 4096}},
              [&](get_status status) { first = static_cast<int>(status); });
  ASSERT_TRUE(here.run_until([&] { return first >= 0; }));
  ASSERT_EQ(first, static_cast<int>(get_status::ok));
  EXPECT_EQ(local[5], std::byte{42});
  child.kill(SIGKILL);
  ASSERT_TRUE(here.run_until([&] { return b->seen.ends().size() == 1; }, 5000));
  std::atomic<int> after{-1};
  b->net->get(b->last_session(), 0, {{0, local.data(), local.size()}},
              [&](get_status status) { after = static_cast<int>(status); });
  ASSERT_TRUE(here.run_until([&] { return after >= 0; }));
  EXPECT_EQ(after, static_cast<int>(get_status::no_session));
}

TEST_P(other_process, reads_of_a_stopped_process_end_with_the_session_and_touch_nothing_after) {
  child_process child(b->address(), GetParam());
  ASSERT_TRUE(here.run_until([&] { return b->seen.count() == 1; }));
  child.kill(SIGSTOP);
  std::vector<std::byte> local(64u << 20);
  std::atomic<int> answers{0};
  b->net->get(b->last_session(), 0, {{0, local.data(), local.size()}},
              [&](get_status) { ++answers; });
  here.settle();
  b->net->close(b->last_session(), "missed its deadline");
  ASSERT_TRUE(here.run_until([&] { return answers == 1; }));
  std::ranges::fill(local, std::byte{0x5a});
  child.kill(SIGCONT);
  here.settle();
  here.settle();
  EXPECT_TRUE(std::ranges::all_of(local, [](std::byte each) { return each == std::byte{0x5a}; }));
}

INSTANTIATE_TEST_SUITE_P(networks, other_process, testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

// --- waiting ------------------------------------------------------------------------------------

double cpu_seconds() {
  rusage used;
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

TEST_F(ucx_transport_test, idle_nodes_sleep) {
  const auto a = here.add("a");
  ASSERT_TRUE(here.open(*a, *b));
  here.settle();
  const auto before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(cpu_seconds() - before, 0.05);  // Two nodes and this test.
  EXPECT_GT(a->net->counters().sleeps, 0u);
}

TEST_F(ucx_transport_test, heartbeats_start_no_busy_waiting) {
  const auto a = here.add("a");
  ASSERT_TRUE(here.open(*a, *b));
  here.settle();
  const auto before = cpu_seconds();
  for (int i = 0; i < 50; ++i) {
    a->net->send(a->last_session(), reserved(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LT(cpu_seconds() - before, 0.1);
  EXPECT_TRUE(here.run_until([&] { return b->seen.count() == 50; }));
}

// --- many sessions ------------------------------------------------------------------------------

TEST_F(ucx_transport_test, sessions_come_and_go_under_load) {
  const auto a = here.add("a", {.region_bytes = 1u << 20});
  std::vector<std::byte> local(1u << 20);
  std::atomic<int> answers{0};
  for (int round = 0; round < 40; ++round) {
    ASSERT_TRUE(here.open(*a, *b)) << round;
    const auto session = a->last_session();
    for (std::uint64_t i = 1; i <= 50; ++i) {
      a->net->send(session, bulk(i, 100));
      b->net->send(b->last_session(), reserved(i));
    }
    a->net->get(session, 0, {{0, local.data(), local.size()}}, [&](get_status) { ++answers; });
    if (round % 3 == 0) {
      a->net->close(session, "next");
    } else if (round % 3 == 1) {
      b->net->close(b->last_session(), "next");
    }  // Else the next one replaces it.
    if (round % 3 != 2) {
      ASSERT_TRUE(here.run_until([&] {
        return a->net->counters().sessions_open == 0 && b->net->counters().sessions_open == 0;
      }));
    }
  }
  EXPECT_TRUE(here.run_until([&] { return answers == 40; }));
  a->net->stop();
  b->net->stop();
  for (const auto* each : {a.get(), b.get()}) {
    EXPECT_TRUE(each->seen.violations().empty());
    EXPECT_EQ(each->seen.opens().size(), 40u);
    EXPECT_EQ(each->seen.ends().size(), 40u);
  }
}

TEST_F(ucx_transport_test, many_threads_may_send) {
  const auto a = here.add("a");
  ASSERT_TRUE(here.open(*a, *b));
  const auto session = a->last_session();
  constexpr std::uint64_t each = 2000;
  std::vector<std::jthread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 1; i <= each; ++i) {
        a->net->send(session, bulk(t * each + i));
      }
    });
  }
  threads.clear();
  ASSERT_TRUE(here.run_until([&] { return b->seen.count() >= 4 * each; }, 20'000));
  std::vector<std::uint64_t> last(4);
  for (const auto& arrival : b->seen.arrivals()) {
    const auto thread = (arrival.number - 1) / each;
    EXPECT_EQ(arrival.number, thread * each + ++last[thread]);  // In order, each once.
  }
}

}  // namespace
}  // namespace eldr::messages::test
