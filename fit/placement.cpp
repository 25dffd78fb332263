#include "fit/placement.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "fit/error.hpp"

namespace eldr::fit {
namespace {

void place_layer(std::span<const double> activation, std::uint32_t ranks,
                 std::span<std::uint16_t> rank_of) {
  const std::size_t room = activation.size() / ranks;
  std::vector<std::uint32_t> order(activation.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [activation](std::uint32_t e) { return activation[e]; });
  std::vector<double> load(ranks, 0);
  std::vector<std::size_t> held(ranks, 0);
  for (const std::uint32_t expert : order) {
    std::size_t lightest = ranks;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (held[rank] < room && (lightest == ranks || load[rank] < load[lightest])) {
        lightest = rank;
      }
    }
    rank_of[expert] = static_cast<std::uint16_t>(lightest);
    load[lightest] += activation[expert];
    ++held[lightest];
  }
}

}  // namespace

std::vector<std::uint16_t> place_experts(std::span<const float> pattern, std::uint32_t layers,
                                         std::uint32_t experts, std::uint32_t ranks,
                                         std::uint32_t batch) {
  if (ranks == 0 || experts % ranks != 0) {
    throw fit_error("Cannot spread " + std::to_string(experts) + " experts evenly over " +
                    std::to_string(ranks) + " EP ranks; give a number of ranks that divides them.");
  }
  std::vector<double> activation(pattern.size());
  std::ranges::transform(pattern, activation.begin(),
                         [batch](float p) { return 1 - std::pow(std::max(0.0, 1.0 - p), batch); });
  std::vector<std::uint16_t> rank_of(pattern.size());
  for (std::size_t layer = 0; layer < layers; ++layer) {
    place_layer(std::span(activation).subspan(layer * experts, experts), ranks,
                std::span(rank_of).subspan(layer * experts, experts));
  }
  return rank_of;
}

}  // namespace eldr::fit
