#pragma once
/// From the transport to the node's actors: frames to the actor they are addressed to, session
/// events to all of them, in the order in which they happened.

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/common/event.hpp"
#include "actors/common/runtime.hpp"

namespace eldr::actors {

class dispatcher final : public messages::transport_events {
 public:
  explicit dispatcher(runtime& runs) : runtime_(runs) {}

  /// Before the transport starts.
  void add(wire::ActorKind kind, actor_ref actor) {
    by_kind_.at(static_cast<std::size_t>(kind)) = actor;
    actors_.push_back(std::move(actor));
  }

  void opened(const messages::peer& p) override {
    auto peer = std::make_shared<const messages::peer>(p);
    sessions_[p.session] = peer;
    to_all(peer_up{std::move(peer)});
  }

  void received(messages::frame_ptr frame) override {
    const auto kind = static_cast<std::size_t>(frame->root().getTo());
    const auto session = sessions_.find(frame->session());
    // A kind that this node has no actor for (or that is newer than this build) is ignored.
    if (kind < by_kind_.size() && by_kind_[kind] && session != sessions_.end()) {
      runtime_.deliver([&] { by_kind_[kind]->put(incoming{std::move(frame), session->second}); });
    }
  }

  void ended(const messages::peer& p, messages::end_reason reason,
             const std::string& detail) override {
    const auto session = sessions_.find(p.session);
    if (session != sessions_.end()) {
      to_all(peer_down{session->second, reason, detail});
      sessions_.erase(session);
    }
  }

  void dial_failed(const std::string& address, const std::string& error) override {
    if (const auto& node = by_kind_[static_cast<std::size_t>(wire::ActorKind::NODE)]) {
      runtime_.deliver([&] { node->put(actors::dial_failed{address, error}); });
    }
  }

 private:
  void to_all(const event& e) {
    runtime_.deliver([&] {
      for (const auto& actor : actors_) {
        actor->put(e);
      }
    });
  }

  runtime& runtime_;
  std::array<actor_ref, 8> by_kind_;
  std::vector<actor_ref> actors_;
  /// Touched by the transport's thread only.
  std::map<messages::session_id, peer_ptr> sessions_;
};

}  // namespace eldr::actors
