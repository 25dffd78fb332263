#pragma once
/// From the manifest to what actors and transports take.

#include <vector>

#include "actors/common/settings.hpp"
#include "actors/node/node.hpp"
#include "cluster/manifest.hpp"
#include "messages/transport.hpp"

namespace eldr::cluster {

actors::settings settings_of(const manifest&);
std::vector<actors::member> members_of(const manifest&);
messages::transport_limits transport_limits_of(const manifest&);
/// Position of a decode node among the manifest's decode nodes: its default slot. -1 otherwise.
std::int32_t slot_of(const manifest&, const node_spec&);

}  // namespace eldr::cluster
