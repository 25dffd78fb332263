#pragma once
/// The router's memory of its last decisions, so that each can be explained. Bounded; pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "actors/router/routing_policy.hpp"

namespace eldr::actors {

struct logged_decision {
  attempt_key key;
  std::string policy;
  std::uint32_t tokens = 0;
  std::string label;
  std::int64_t at_ns = 0;
  std::int64_t decision_ns = 0;  ///< Time that the choice took.
  decision what;
  std::vector<std::string> nodes;  ///< Names of the candidates, as in `what`.
};

/// A ring: entries are reused, so that noting a decision allocates nothing once it is full.
class decision_log {
 public:
  explicit decision_log(std::size_t entries_max)
      : entries_max_(entries_max == 0 ? 1 : entries_max) {}

  /// The entry to fill in for the next decision; the oldest one once the ring is full.
  logged_decision& next() {
    if (ring_.size() < entries_max_) {
      return ring_.emplace_back();
    }
    auto& entry = ring_[oldest_];
    oldest_ = (oldest_ + 1) % ring_.size();
    return entry;
  }

  /// Latest decision about the request with this counter; counter 0: the latest of all. Null if it
  /// is not remembered.
  const logged_decision* find(std::uint64_t counter) const {
    for (std::size_t i = 0; i < ring_.size(); ++i) {
      // From the newest: one before the oldest, backwards.
      const auto& entry = ring_[(oldest_ + 2 * ring_.size() - 1 - i) % ring_.size()];
      if (counter == 0 || entry.key.request.counter == counter) {
        return &entry;
      }
    }
    return nullptr;
  }

  std::size_t size() const noexcept { return ring_.size(); }

 private:
  std::size_t entries_max_;
  std::vector<logged_decision> ring_;
  std::size_t oldest_ = 0;
};

}  // namespace eldr::actors
