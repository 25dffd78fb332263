#pragma once
/// Credits of one session: how many bulk frames may be in flight in each direction. Pure.

#include <algorithm>
#include <cstdint>

namespace eldr::messages {

/// The sender's side: starts with the whole window.
class send_credits {
 public:
  explicit send_credits(std::uint32_t window) : window_(window), available_(window) {}

  bool empty() const noexcept { return available_ == 0; }
  void take() noexcept { --available_; }
  /// False if the peer returns more than it was lent, which only a broken peer does.
  [[nodiscard]] bool grant(std::uint32_t count) noexcept {
    if (count > window_ - available_) {
      return false;
    }
    available_ += count;
    return true;
  }

 private:
  std::uint32_t window_;
  std::uint32_t available_;
};

/// The receiver's side: owes a credit for each frame that its handlers have let go of.
class owed_credits {
 public:
  explicit owed_credits(std::uint32_t window) : batch_(std::max(1u, window / 4)) {}

  void add() noexcept { ++owed_; }
  /// A quarter of the window is owed: send it even if nothing else goes that way. A sender with no
  /// credit left then always hears of it, unless the receiver still holds the frames.
  bool due() const noexcept { return owed_ >= batch_; }
  std::uint32_t take() noexcept {
    const auto count = owed_;
    owed_ = 0;
    return count;
  }

 private:
  std::uint32_t batch_;
  std::uint32_t owed_ = 0;
};

}  // namespace eldr::messages
