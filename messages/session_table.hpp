#pragma once
/// What any thread may know of the open sessions: whether they are open, and how much waits to be
/// sent. Lock-free; senders never wait for the progress thread.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "messages/transport.hpp"

namespace eldr::messages {

/// Most sessions that a node has at once; a power of two.
inline constexpr std::uint32_t sessions_max = 1024;

struct session_slot {
  std::atomic<session_id> open{0};  ///< 0: free.
  std::atomic<std::size_t> bulk_bytes{0};
  std::atomic<std::uint32_t> bulk_frames{0};
  std::atomic<std::uint32_t> reserved_frames{0};
  std::atomic<std::size_t> bulk_bytes_max{0};  ///< Bound of the session that is open.
};

/// A message's share of its session's queue, given back when the message is gone. The counts of a
/// slot are never reset, so that what is left of an ended session cannot falsify its successor's.
class queue_share {
 public:
  queue_share() = default;
  queue_share(session_slot& slot, traffic cls, std::size_t bytes) noexcept
      : slot_(&slot), bytes_(cls == traffic::bulk ? bytes : 0), cls_(cls) {
    if (cls == traffic::bulk) {
      frames_before_ = slot.bulk_frames.fetch_add(1, std::memory_order_relaxed);
      bytes_before_ = slot.bulk_bytes.fetch_add(bytes, std::memory_order_relaxed);
    } else {
      frames_before_ = slot.reserved_frames.fetch_add(1, std::memory_order_relaxed);
    }
  }
  queue_share(queue_share&& other) noexcept { *this = std::move(other); }
  queue_share& operator=(queue_share&& other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(bytes_, other.bytes_);
    std::swap(frames_before_, other.frames_before_);
    std::swap(bytes_before_, other.bytes_before_);
    std::swap(cls_, other.cls_);
    return *this;
  }
  ~queue_share() {
    if (slot_ == nullptr) {
      return;
    }
    auto& frames = cls_ == traffic::bulk ? slot_->bulk_frames : slot_->reserved_frames;
    frames.fetch_sub(1, std::memory_order_relaxed);
    slot_->bulk_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  }

  bool exceeds(const transport_limits& limits) const noexcept {
    return cls_ == traffic::bulk
               ? frames_before_ >= limits.queue_frames_max ||
                     bytes_before_ + bytes_ > slot_->bulk_bytes_max.load(std::memory_order_relaxed)
               : frames_before_ >= limits.reserved_frames_max;
  }

 private:
  session_slot* slot_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t bytes_before_ = 0;
  std::uint32_t frames_before_ = 0;
  traffic cls_ = traffic::bulk;
};

/// Session ids are slot index plus a number that is never used twice.
class session_table {
 public:
  session_slot& slot_of(session_id id) noexcept { return slots_[id % sessions_max]; }
  bool is_open(session_id id) noexcept {
    return id != 0 && slot_of(id).open.load(std::memory_order_acquire) == id;
  }
  /// True for the one caller that closed it. Nothing can be sent by it from now on.
  bool close(session_id id) noexcept {
    return id != 0 && slot_of(id).open.compare_exchange_strong(id, 0);
  }

  /// Progress thread only: a fresh id, not open yet; 0 if all slots are taken.
  session_id reserve() noexcept {
    for (std::uint32_t tried = 0; tried < sessions_max; ++tried) {
      const auto id = ++last_;
      if (!taken_[id % sessions_max]) {
        taken_[id % sessions_max] = true;
        return id;
      }
    }
    return 0;
  }
  void open(session_id id, std::size_t bulk_bytes_max) noexcept {
    slot_of(id).bulk_bytes_max.store(bulk_bytes_max, std::memory_order_relaxed);
    slot_of(id).open.store(id, std::memory_order_release);
  }
  void release(session_id id) noexcept {
    close(id);
    taken_[id % sessions_max] = false;
  }

 private:
  std::array<session_slot, sessions_max> slots_;
  std::array<bool, sessions_max> taken_{};
  session_id last_ = 0;
};

}  // namespace eldr::messages
