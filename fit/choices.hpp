#pragma once
/// The check of a token's expert ids that reading, writing and importing share.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace eldr::fit {

/// Checks that the ids of a token in one layer are below `experts` and distinct.
class choice_checker {
 public:
  explicit choice_checker(std::uint32_t experts) : seen_(experts, 0) {}

  bool valid(std::span<const std::uint16_t> ids) noexcept {
    ++stamp_;
    for (const std::uint16_t id : ids) {
      if (id >= seen_.size() || seen_[id] == stamp_) {
        return false;
      }
      seen_[id] = stamp_;
    }
    return true;
  }

  /// Says in a clause what is wrong with ids that are not valid.
  std::string explain(std::span<const std::uint16_t> ids) const;

 private:
  // The stamp of the last token that chose the expert: nothing needs clearing between tokens.
  std::vector<std::uint64_t> seen_;
  std::uint64_t stamp_ = 0;
};

/// Checks rows of [layers][k] ids. Nothing when all are valid, else a clause that names the row
/// (counted from 0), the layer and the fault.
std::optional<std::string> find_choice_fault(std::span<const std::uint16_t> choices,
                                             std::uint32_t layers, std::uint32_t experts_per_token,
                                             choice_checker& checker);

}  // namespace eldr::fit
