#include "apps/bench_peer.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <charconv>
#include <chrono>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "actors/common/runtime.hpp"
#include "actors/common/wire.hpp"
#include "actors/node/dispatcher.hpp"
#include "messages/ucx_transport.hpp"

namespace eldr::apps {
namespace {

using actors::runtime;

std::uint64_t draw() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device() | 1;
}

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  }
  return text;
}

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned value = 0;
    std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

void fill(std::span<std::byte> memory) {
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= memory.size(); at += 8) {
    const auto word = bench_word(at);
    std::memcpy(memory.data() + at, &word, sizeof word);
  }
}

std::unique_ptr<messages::transport> make_transport(const std::string& name,
                                                    const std::string& address,
                                                    const std::string& token, bool shared_memory,
                                                    std::uint32_t gets_in_flight) {
  messages::ucx_options options;
  options.token = token;
  options.shared_memory = shared_memory;
  options.limits.gets_in_flight = gets_in_flight;
  return messages::make_ucx_transport({name, "client", draw(), 0, 0, address}, std::move(options));
}

/// Sends every Handoff's signature back.
class echo_core final : public actors::core {
 public:
  explicit echo_core(wire::ActorKind answer_to) : answer_to_(answer_to) {}

  void handle(actors::context& ctx, actors::event& e) override {
    const auto* in = std::get_if<actors::incoming>(&e);
    if (in == nullptr || !in->frame->root().isHandoff()) {
      return;
    }
    const auto data = in->frame->root().getHandoff().getSignature();
    actors::send(ctx, in->from->session,
                 make_bench_message(
                     answer_to_, {reinterpret_cast<const std::byte*>(data.begin()), data.size()}));
  }

 private:
  wire::ActorKind answer_to_;
};

struct peer_options {
  std::string raw_address;
  std::string token;
  bool shared_memory = false;
  std::size_t memory_bytes = 0;
};

int run_peer(const peer_options& o) {
  spdlog::set_level(spdlog::level::off);
  interruption stop;
  raw_ucx raw(o.shared_memory);
  const auto transport = make_transport("bench-peer", "127.0.0.1:0", o.token, o.shared_memory,
                                        messages::transport_limits{}.gets_in_flight);
  nlohmann::json facts;
  if (o.memory_bytes > 0) {
    fill(transport->allocate_region(o.memory_bytes));
    const auto memory = raw.allocate(o.memory_bytes);
    fill(memory);
    facts["raw_memory"] = reinterpret_cast<std::uint64_t>(memory.data());
    facts["raw_key"] = to_hex(raw.key());
  }
  actors::environment env;
  env.now_ns = [] { return std::int64_t{0}; };
  env.random = draw;
  env.transport = transport.get();
  runtime actors_here(env, runtime::mode::threads);
  actors::dispatcher events(actors_here);
  for (const auto& [path, where] :
       {std::pair(bench_path::scheduler, runtime::execution::scheduler),
        std::pair(bench_path::progress, runtime::execution::progress)}) {
    events.add(echo_kind(path),
               actors_here.spawn("echo", std::make_unique<echo_core>(reply_kind(path)), where));
  }
  const transport_stopper stop_first{*transport};
  transport->start(events);
  raw.connect(from_hex(o.raw_address));
  facts["address"] = transport->self().address;
  facts["raw_address"] = to_hex(raw.address());
  std::cout << facts.dump() << std::endl;
  raw.serve(stop.fd());
  return 0;
}

std::vector<std::string> peer_arguments(const bench_pair::setup& with, const std::string& token,
                                        const raw_ucx& raw) {
  std::vector<std::string> words{"bench", "peer",          "--token",
                                 token,   "--raw-address", to_hex(raw.address())};
  words.insert(words.end(), {"--memory-bytes", std::to_string(with.memory_bytes)});
  if (with.shared_memory) {
    words.push_back("--shared-memory");
  }
  return words;
}

}  // namespace

wire::ActorKind echo_kind(bench_path path) {
  return path == bench_path::scheduler ? wire::ActorKind::PREFILL : wire::ActorKind::ROUTER;
}

wire::ActorKind reply_kind(bench_path path) {
  return path == bench_path::scheduler ? wire::ActorKind::DECODER : wire::ActorKind::GATEWAY;
}

messages::outgoing_ptr make_bench_message(wire::ActorKind to, std::span<const std::byte> data) {
  auto out = actors::make_message(to, data.size() / 8);
  auto copy = out->root().initHandoff().initSignature(static_cast<unsigned>(data.size()));
  std::memcpy(copy.begin(), data.data(), data.size());
  return out;
}

bench_pair::bench_pair(const setup& with, interruption& stop)
    : raw_(with.shared_memory),
      // It guards memory without content for the seconds that the benchmark takes.
      token_(fmt::format("{:016x}", draw())),
      peer_("the benchmark's peer", peer_arguments(with, token_, raw_), 2000),
      transport_(make_transport("bench", "", token_, with.shared_memory, with.gets_in_flight)) {
  const auto line = peer_.wait_for_line([](std::string_view text) { return text.starts_with('{'); },
                                        std::chrono::seconds(20), stop);
  const auto facts = nlohmann::json::parse(line);
  peer_address_ = facts.at("address");
  raw_.connect(from_hex(facts.at("raw_address")));
  if (with.memory_bytes > 0) {
    raw_.read_from(facts.at("raw_memory"), from_hex(facts.at("raw_key")));
  }
}

void add_bench_peer(CLI::App& bench, command& chosen) {
  auto o = std::make_shared<peer_options>();
  CLI::App* peer = bench.add_subcommand("peer", "The other process of a benchmark");
  peer->group("");  // Not in the help.
  peer->add_option("--raw-address", o->raw_address)->required();
  peer->add_option("--token", o->token)->required();
  peer->add_option("--memory-bytes", o->memory_bytes);
  peer->add_flag("--shared-memory", o->shared_memory);
  peer->callback([o, &chosen] { chosen = [o] { return run_peer(*o); }; });
}

}  // namespace eldr::apps
