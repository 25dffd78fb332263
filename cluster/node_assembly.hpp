#pragma once
/// The actors that a node of each role has, and how they are wired. Used by real nodes and by the
/// simulation alike.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/common/event.hpp"
#include "actors/common/runtime.hpp"
#include "actors/common/settings.hpp"
#include "actors/node/dispatcher.hpp"
#include "actors/node/node.hpp"
#include "actors/request/text.hpp"
#include "actors/router/policy_desk.hpp"
#include "gpu/engine.hpp"

namespace eldr::cluster {

/// What a node is made of besides its transport (whose identity names its role).
struct assembly {
  actors::settings settings;
  std::vector<actors::member> members;  ///< All nodes of the manifest.
  // Prefill and decode nodes:
  gpu::engine* engine = nullptr;  ///< Outlives the actors.
  gpu::engine_memory memory;      ///< What the engine works on; region 0 of the transport.
  std::int32_t slot = -1;         ///< Decode: its centroid slot.
  // Routers:
  actors::policy_options policy;  ///< Geometry and the artifact that it starts with.
  std::string artifact_source;
  actors::artifact_loader load_artifact;
  // Gateways:
  std::shared_ptr<const actors::text_codec> codec;
  std::function<void()> on_ready;
  std::function<void()> on_drained;
};

/// A node's actors: made with its runtime, fed by its transport.
class node_actors {
 public:
  /// Starts the actors. `transport` is not started yet; give it events() then.
  node_actors(const assembly&, messages::transport& transport, actors::runtime& runtime);

  messages::transport_events& events() noexcept { return dispatcher_; }
  /// Takes `drain`.
  const actors::actor_ref& node() const noexcept { return node_; }

 private:
  void add_worker_actors(const assembly&, const std::string& role, actors::runtime&);

  actors::dispatcher dispatcher_;
  std::vector<actors::actor_ref> actors_;  ///< All but the node actor.
  actors::actor_ref node_;
};

}  // namespace eldr::cluster
