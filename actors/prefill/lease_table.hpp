#pragma once
/// Leases on finished KV blocks: they stay pinned until the decoder has read them, or until the
/// deadline (design rule 7). Pure.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "actors/common/ids.hpp"
#include "gpu/geometry.hpp"

namespace eldr::actors {

class lease_table {
 public:
  struct lease {
    attempt_key key;
    std::vector<gpu::block_id> blocks;
    std::int64_t deadline_ns = 0;
  };
  /// Outcome of a release. `blocks` are the caller's to unpin, whether or not the release was in
  /// time; ok tells the decoder that what it read is valid.
  struct outcome {
    bool ok = false;
    std::vector<gpu::block_id> blocks;
  };

  std::uint64_t grant(lease l) {
    const auto id = next_id_++;
    leases_.emplace(id, std::move(l));
    return id;
  }

  /// Ends a lease. Unknown leases, and leases of another attempt, are left alone and not ok. The
  /// deadline counts, not whether a timer has seen it.
  outcome release(std::uint64_t id, const attempt_key& key, std::int64_t now_ns) {
    auto found = leases_.find(id);
    if (found == leases_.end() || found->second.key != key) {
      return {};
    }
    outcome out{now_ns < found->second.deadline_ns, std::move(found->second.blocks)};
    expired_ += out.ok ? 0 : 1;
    leases_.erase(found);
    return out;
  }

  /// Ends all leases that have run out; their blocks.
  std::vector<gpu::block_id> expire(std::int64_t now_ns) {
    const auto before = leases_.size();
    auto blocks = end_if([&](const lease& l) { return l.deadline_ns <= now_ns; });
    expired_ += before - leases_.size();
    return blocks;
  }

  /// Ends all leases for which `ends` holds; their blocks.
  std::vector<gpu::block_id> end_if(const std::function<bool(const lease&)>& ends) {
    std::vector<gpu::block_id> blocks;
    for (auto it = leases_.begin(); it != leases_.end();) {
      if (ends(it->second)) {
        blocks.insert(blocks.end(), it->second.blocks.begin(), it->second.blocks.end());
        it = leases_.erase(it);
      } else {
        ++it;
      }
    }
    return blocks;
  }

  std::optional<std::int64_t> next_deadline_ns() const {
    std::optional<std::int64_t> next;
    for (const auto& [id, l] : leases_) {
      if (!next || l.deadline_ns < *next) {
        next = l.deadline_ns;
      }
    }
    return next;
  }

  std::size_t size() const noexcept { return leases_.size(); }
  std::uint64_t expired_total() const noexcept { return expired_; }

 private:
  std::map<std::uint64_t, lease> leases_;
  std::uint64_t next_id_ = 1;
  std::uint64_t expired_ = 0;
};

}  // namespace eldr::actors
