#pragma once
/// The transports that keep the contract.

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/messages/world.hpp"

namespace eldr::messages::test {

enum class world_kind { memory };

inline std::vector<world_kind> contract_worlds() {
  return {world_kind::memory};
}

inline std::string to_string(world_kind kind) {
  switch (kind) {
    case world_kind::memory:
      return "memory";
  }
  return "unknown";
}

inline std::unique_ptr<world> make_contract_world(world_kind, const transport_limits& limits) {
  network_options options;
  options.limits = limits;
  return std::make_unique<memory_world>(options);
}

}  // namespace eldr::messages::test
