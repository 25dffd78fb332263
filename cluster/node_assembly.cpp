#include "cluster/node_assembly.hpp"

#include <stdexcept>
#include <utility>

#include "actors/decoder/decoder.hpp"
#include "actors/prefill/prefill.hpp"
#include "actors/request/gateway.hpp"
#include "actors/router/router.hpp"
#include "actors/signature_cache/signature_cache.hpp"

namespace eldr::cluster {

namespace {
std::vector<std::string> workers_of(const std::vector<actors::member>& members) {
  std::vector<std::string> names;
  for (const auto& m : members) {
    if (m.role == "prefill" || m.role == "decode") {
      names.push_back(m.node);
    }
  }
  return names;
}

actors::router_spec router_spec_of(const assembly& parts) {
  actors::router_spec spec{workers_of(parts.members), parts.policy, parts.artifact_source,
                           parts.load_artifact};
  spec.policy.decode_nodes = 0;
  for (const auto& m : parts.members) {
    spec.policy.decode_nodes += m.role == "decode" ? 1 : 0;
  }
  return spec;
}
}  // namespace

node_actors::node_actors(const assembly& parts, messages::transport& transport,
                         actors::runtime& runtime)
    : dispatcher_(runtime) {
  const auto& role = transport.self().role;
  if (role == "gateway") {
    auto gateway = runtime.spawn(
        "gateway", std::make_unique<actors::gateway_core>(parts.settings, parts.codec));
    dispatcher_.add(wire::ActorKind::GATEWAY, gateway);
    actors_.push_back(std::move(gateway));
  } else if (role == "router") {
    auto router = runtime.spawn(
        "router", std::make_unique<actors::router_core>(parts.settings, router_spec_of(parts)),
        actors::runtime::execution::progress);
    dispatcher_.add(wire::ActorKind::ROUTER, router);
    actors_.push_back(std::move(router));
  } else {
    add_worker_actors(parts, role, runtime);
  }
  actors::node_spec spec;
  spec.members = parts.members;
  spec.actors = actors_;
  spec.backend = parts.engine != nullptr ? parts.engine->backend() : std::string("none");
  spec.on_ready = parts.on_ready;
  spec.on_drained = parts.on_drained;
  node_ =
      runtime.spawn("node", std::make_unique<actors::node_core>(parts.settings, std::move(spec)),
                    actors::runtime::execution::progress);
  dispatcher_.add(wire::ActorKind::NODE, node_);
}

void node_actors::add_worker_actors(const assembly& parts, const std::string& role,
                                    actors::runtime& runtime) {
  if (parts.engine == nullptr) {
    throw std::invalid_argument("a " + role + " node needs an engine");
  }
  if (role == "decode") {
    auto decoder = runtime.spawn("decoder", std::make_unique<actors::decoder_core>(
                                                parts.settings, *parts.engine, parts.memory.kv,
                                                parts.memory.block_count, parts.slot));
    dispatcher_.add(wire::ActorKind::DECODER, decoder);
    actors_.push_back(std::move(decoder));
    return;
  }
  const auto& geometry = parts.engine->geometry();
  auto cache = runtime.spawn(
      "signature_cache", std::make_unique<actors::signature_cache_core>(
                             parts.memory.rows, std::size_t{geometry.layers} * geometry.experts));
  constexpr std::uint32_t kv_region = 0;
  auto prefill = runtime.spawn(
      "prefill", std::make_unique<actors::prefill_core>(
                     parts.settings, *parts.engine, parts.memory.block_count, kv_region, cache));
  dispatcher_.add(wire::ActorKind::PREFILL, prefill);
  actors_.push_back(std::move(prefill));
  actors_.push_back(std::move(cache));
}

}  // namespace eldr::cluster
