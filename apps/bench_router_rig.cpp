#include "apps/bench_router_rig.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "messages/message_view.hpp"

namespace eldr::apps {
namespace {

using std::chrono::steady_clock;

constexpr std::uint64_t gateway_incarnation = 7;
constexpr messages::session_id gateway_session = 1;
constexpr messages::session_id first_worker = 2;
constexpr std::uint32_t experts_per_token = 8;
constexpr std::uint32_t blocks = 1u << 20;

template <class Body>
double us_each(Body body) {
  const auto begin = steady_clock::now();
  body();
  const std::chrono::duration<double, std::micro> time = steady_clock::now() - begin;
  return time.count() / static_cast<double>(router_rig::batch_size);
}

/// Vectors of unit length, one per slot.
std::vector<float> drawn_centroids(std::size_t slots, std::size_t cells) {
  std::mt19937 random(1);
  std::vector<float> all;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    std::vector<float> centroid(cells);
    double square = 0;
    for (float& x : centroid) {
      x = static_cast<float>(random() % 1000);
      square += double{x} * double{x};
    }
    for (float& x : centroid) {
      x /= static_cast<float>(std::sqrt(square));
    }
    all.insert(all.end(), centroid.begin(), centroid.end());
  }
  return all;
}

std::shared_ptr<const fit::artifact> drawn_artifact(const router_shape& shape) {
  const std::size_t cells = std::size_t{shape.layers} * shape.experts;
  auto a = std::make_shared<fit::artifact>();
  a->layers = shape.layers;
  a->experts = shape.experts;
  a->experts_per_token = experts_per_token;
  a->block_tokens = 16;
  a->slots = shape.decoders;
  a->mask.resize(shape.layers);
  std::iota(a->mask.begin(), a->mask.end(), 0u);
  a->centroids = drawn_centroids(shape.decoders, cells);
  a->vanilla_centroids = a->centroids;
  const float share =
      std::min(1.0F, static_cast<float>(experts_per_token) / static_cast<float>(shape.experts));
  a->cluster_patterns.assign(shape.decoders * cells, share);
  a->global_pattern.assign(cells, share);
  a->labels = {{"a", 500}, {"b", 500}};
  return a;
}

actors::settings settings_with(const std::string& policy) {
  actors::settings s;
  s.policy = policy;
  return s;
}

actors::router_spec spec_for(const router_shape& shape) {
  actors::router_spec spec;
  spec.policy = bench_policy_options(shape);
  return spec;
}

/// A message as if it had been received.
class built_frame final : public messages::frame {
 public:
  built_frame(messages::outgoing_ptr message, messages::session_id session)
      : message_(std::move(message)), session_(session), view_(segments()) {}
  wire::Message::Reader root() const override { return view_.root(); }
  std::size_t bytes() const noexcept override { return message_->bytes(); }
  std::uint64_t session() const noexcept override { return session_; }

 private:
  std::span<const kj::ArrayPtr<const capnp::word>> segments() {
    const auto parts = message_->arena().getSegmentsForOutput();
    return {parts.begin(), parts.size()};
  }

  messages::outgoing_ptr message_;
  messages::session_id session_;
  messages::message_view view_;
};

/// Placed and DecodeTask of a handoff, as the router writes them.
void write_answers(wire::Handoff::Reader in) {
  const auto key = actors::read(in.getAttempt());
  const auto placed = actors::make_message(wire::ActorKind::GATEWAY);
  auto to_request = placed->root().initPlaced();
  actors::write(to_request.initAttempt(), key);
  to_request.setNode("decode-1");
  const auto task = actors::make_message(wire::ActorKind::DECODER,
                                         actors::words_for_u32(in.getKv().getBlocks().size()) + 16);
  auto to_worker = task->root().initDecodeTask();
  actors::write(to_worker.initAttempt(), key);
  to_worker.setKv(in.getKv());
  to_worker.setSampling(in.getSampling());
}

}  // namespace

actors::policy_options bench_policy_options(const router_shape& shape) {
  actors::policy_options options;
  options.decode_nodes = shape.decoders;
  options.artifact = drawn_artifact(shape);
  options.layers = shape.layers;
  options.experts = shape.experts;
  options.experts_per_token = experts_per_token;
  return options;
}

messages::send_result task_sink::send(messages::session_id session, messages::outgoing_ptr out) {
  auto root = out->root();
  if (root.isDecodeTask()) {
    auto sent = root.getDecodeTask();
    tasks.push_back({session, sent.getTaskNumber(), actors::read(sent.getAttempt().asReader())});
  } else if (root.isPrefillTask()) {
    auto sent = root.getPrefillTask();
    tasks.push_back({session, sent.getTaskNumber(), actors::read(sent.getAttempt().asReader())});
  } else if (root.isFailed()) {
    throw std::runtime_error(
        "the router refused a request of the benchmark; this is a fault of "
        "eldr");
  }
  return messages::send_result::queued;
}

void task_sink::close(messages::session_id, const std::string& detail) {
  throw std::runtime_error("the router closed a session of the benchmark: " + detail);
}

std::int64_t router_world::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             steady_clock::now().time_since_epoch())
      .count();
}

router_rig::router_rig(const router_shape& shape, const std::string& policy)
    : shape_(shape), router_(settings_with(policy), spec_for(shape)) {
  router_.start(world_);
  add_peer("gateway", "gateway", gateway_session, gateway_incarnation);
  for (std::uint32_t i = 0; i < std::max(1u, shape.decoders / 2); ++i) {
    add_worker(fmt::format("prefill-{}", i + 1), "prefill", -1);
  }
  for (std::uint32_t i = 0; i < shape.decoders; ++i) {
    add_worker(fmt::format("decode-{}", i + 1), "decode", static_cast<std::int32_t>(i));
  }
}

router_rig::costs router_rig::run_batch() {
  costs c;
  std::vector<actors::event> submits;
  std::vector<actors::event> handoffs;
  for (std::size_t i = 0; i < batch_size; ++i) {
    const actors::attempt_key key{{gateway_incarnation, ++requests_}, 1};
    submits.push_back(received(gateway_session, make_submit(key)));
    handoffs.push_back(received(first_worker, make_handoff(key)));
  }
  c.submit_us = us_each([&] { handle(submits); });
  auto prefill_reports = reports();
  c.handoff_us = us_each([&] { handle(handoffs); });
  auto decode_reports = reports();
  c.report_us = us_each([&] {
    handle(prefill_reports);
    handle(decode_reports);
  });
  c.floor_us = us_each([&] {
    for (const auto& e : handoffs) {
      write_answers(std::get<actors::incoming>(e).frame->root().getHandoff());
    }
  });
  return c;
}

void router_rig::add_peer(const std::string& node, const std::string& role,
                          messages::session_id session, std::uint64_t incarnation) {
  messages::peer peer;
  peer.session = session;
  peer.id.node = node;
  peer.id.role = role;
  peer.id.incarnation = incarnation;
  peer.id.fingerprint = 1;
  peers_[session] = std::make_shared<const messages::peer>(std::move(peer));
  actors::event up = actors::peer_up{peers_[session]};
  router_.handle(world_, up);
}

void router_rig::add_worker(const std::string& node, const std::string& role, std::int32_t slot) {
  const auto session = first_worker + workers_++;
  slots_[session] = slot;
  add_peer(node, role, session, 100 + session);
  std::vector<actors::event> first;
  first.push_back(report(session, 0, {}, 0));
  handle(first);
}

actors::event router_rig::received(messages::session_id from,
                                   messages::outgoing_ptr message) const {
  return actors::incoming{std::make_shared<const built_frame>(std::move(message), from),
                          peers_.at(from)};
}

void router_rig::handle(std::vector<actors::event>& events) {
  for (auto& e : events) {
    router_.handle(world_, e);
  }
}

messages::outgoing_ptr router_rig::make_submit(const actors::attempt_key& key) const {
  auto out = actors::make_message(wire::ActorKind::ROUTER, prompt_tokens / 2);
  auto submit = out->root().initSubmit();
  actors::write(submit.initAttempt(), key);
  const std::vector<std::uint32_t> tokens(prompt_tokens, static_cast<std::uint32_t>(requests_));
  actors::write(submit.initTokens(prompt_tokens), tokens);
  actors::write(submit.initSampling(), {.tokens_max = 64, .sampling = {}});
  return out;
}

messages::outgoing_ptr router_rig::make_handoff(const actors::attempt_key& key) const {
  const auto cells = shape_.layers * shape_.experts;
  auto out = actors::make_message(wire::ActorKind::ROUTER, cells / 4 + 64);
  auto handoff = out->root().initHandoff();
  actors::write(handoff.initAttempt(), key);
  const actors::kv_ref kv{"prefill-1", 102, requests_, 0, std::vector<gpu::block_id>(16, 3), 256};
  actors::write(handoff.initKv(), kv);
  auto signature = handoff.initSignature(cells * 2);
  for (std::uint32_t i = 0; i < cells; i += 2) {
    signature[2 * i] = static_cast<kj::byte>(1 + (i + requests_) % 31);
  }
  actors::write(handoff.initSampling(), {.tokens_max = 64, .sampling = {}});
  handoff.setTokenCount(prompt_tokens);
  handoff.setLabel(requests_ % 2 == 0 ? "a" : "b");
  handoff.setFingerprint(1);
  return out;
}

std::vector<actors::event> router_rig::reports() {
  std::map<messages::session_id, std::vector<task_sink::task>> by_worker;
  for (const auto& task : std::exchange(world_.transport().tasks, {})) {
    by_worker[task.worker].push_back(task);
  }
  std::vector<actors::event> events;
  for (auto& [worker, tasks] : by_worker) {
    events.push_back(report(worker, tasks.back().number, running_[worker], tasks.size()));
    running_[worker] = std::move(tasks);
  }
  return events;
}

actors::event router_rig::report(messages::session_id worker, std::uint64_t last_processed,
                                 const std::vector<task_sink::task>& ended,
                                 std::size_t running) const {
  auto out = actors::make_message(wire::ActorKind::ROUTER, ended.size() * 8);
  auto depth = out->root().initQueueDepth();
  depth.setRunning(static_cast<std::uint32_t>(running));
  depth.setLastProcessed(last_processed);
  auto keys = depth.initEnded(static_cast<unsigned>(ended.size()));
  for (unsigned i = 0; i < ended.size(); ++i) {
    actors::write(keys[i], ended[i].key);
  }
  depth.setFreeBlocks(blocks);
  depth.setTotalBlocks(blocks);
  depth.setSlot(slots_.at(worker));
  return received(worker, std::move(out));
}

}  // namespace eldr::apps
