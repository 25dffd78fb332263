#pragma once
/// The transport that an in-memory network hands out. Internal to the messages folder.

#include <memory>

#include "messages/memory_session.hpp"

namespace eldr::messages::memory {

std::unique_ptr<transport> make_transport(memory_network::impl& network, process_ptr process);

}  // namespace eldr::messages::memory
