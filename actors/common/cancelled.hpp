#pragma once
/// Attempts that were cancelled, so that a task which its Cancel overtook can be refused.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "actors/common/ids.hpp"

namespace eldr::actors {

/// Remembers, per request, the highest cancelled attempt; bounded, oldest forgotten first.
class cancelled_attempts {
 public:
  explicit cancelled_attempts(std::size_t entries_max = 4096) : entries_max_(entries_max) {}

  void add(const attempt_key& key) {
    auto [entry, fresh] = highest_.try_emplace(key.request, key.number);
    if (!fresh) {
      entry->second = std::max(entry->second, key.number);
      return;
    }
    order_.push_back(key.request);
    if (order_.size() > entries_max_) {
      highest_.erase(order_.front());
      order_.pop_front();
    }
  }

  /// A cancelled attempt takes the lower ones with it.
  bool contains(const attempt_key& key) const {
    auto found = highest_.find(key.request);
    return found != highest_.end() && key.number <= found->second;
  }

  std::size_t size() const noexcept { return highest_.size(); }

 private:
  std::size_t entries_max_;
  std::map<request_id, std::uint32_t> highest_;
  std::deque<request_id> order_;
};

}  // namespace eldr::actors
