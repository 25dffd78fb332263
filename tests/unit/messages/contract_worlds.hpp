#pragma once
/// The transports that keep the contract.

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "messages/ucx_transport.hpp"
#include "tests/unit/messages/world.hpp"

namespace eldr::messages::test {

enum class world_kind { memory, ucx_tcp, ucx_shared_memory };

inline std::vector<world_kind> contract_worlds() {
  return {world_kind::memory, world_kind::ucx_tcp, world_kind::ucx_shared_memory};
}

inline std::string to_string(world_kind kind) {
  switch (kind) {
    case world_kind::memory:
      return "memory";
    case world_kind::ucx_tcp:
      return "ucx_tcp";
    case world_kind::ucx_shared_memory:
      return "ucx_shared_memory";
  }
  return "unknown";
}

/// Nodes in this process that talk over loopback, in real time.
class ucx_world final : public world {
 public:
  explicit ucx_world(ucx_options options = {}) : options_(std::move(options)) {}

  std::unique_ptr<transport> make(identity id, const std::string& token) override {
    auto options = options_;
    options.token = token;
    return make_ucx_transport(std::move(id), std::move(options));
  }
  std::string fresh_address() override { return "127.0.0.1:0"; }
  bool run_until(const std::function<bool()>& condition, int budget_ms = 10'000) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(budget_ms);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) {
        return condition();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }
  void settle() override { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

 private:
  ucx_options options_;
};

inline std::unique_ptr<world> make_contract_world(world_kind kind, const transport_limits& limits) {
  if (kind == world_kind::memory) {
    network_options options;
    options.limits = limits;
    return std::make_unique<memory_world>(options);
  }
  ucx_options options;
  options.limits = limits;
  options.shared_memory = kind == world_kind::ucx_shared_memory;
  return std::make_unique<ucx_world>(options);
}

}  // namespace eldr::messages::test
