#include "fit/choices.hpp"

#include <algorithm>

namespace eldr::fit {

std::string choice_checker::explain(std::span<const std::uint16_t> ids) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= seen_.size()) {
      return "expert id " + std::to_string(ids[i]) + " where the model has " +
             std::to_string(seen_.size()) + " experts";
    }
    if (std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i), ids[i]) !=
        ids.begin() + static_cast<std::ptrdiff_t>(i)) {
      return "expert id " + std::to_string(ids[i]) + " twice";
    }
  }
  return "no fault";
}

std::optional<std::string> find_choice_fault(std::span<const std::uint16_t> choices,
                                             std::uint32_t layers, std::uint32_t experts_per_token,
                                             choice_checker& checker) {
  const std::size_t row_ids = std::size_t{layers} * experts_per_token;
  for (std::size_t first = 0; first + row_ids <= choices.size(); first += row_ids) {
    const auto row = choices.subspan(first, row_ids);
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const auto ids = row.subspan(std::size_t{layer} * experts_per_token, experts_per_token);
      if (checker.valid(ids)) {
        continue;
      }
      const auto zero = [](std::uint16_t id) { return id == 0; };
      const std::string where = "row " + std::to_string(first / row_ids);
      if (std::ranges::all_of(row, zero)) {
        return where + " is all zero, so its token was not recorded";
      }
      return where + ", layer " + std::to_string(layer) + " has " +
             (std::ranges::all_of(ids, zero) ? "all ids 0 (an empty layer)" : checker.explain(ids));
    }
  }
  return std::nullopt;
}

}  // namespace eldr::fit
