#include "gpu/signature.hpp"

#include <stdexcept>
#include <string>

namespace eldr::gpu {

namespace {

/// sum[i] += row[i]. Cells go in groups of fixed size, which the compiler turns into vector code
/// also at -O2; integers, so that changes no result.
void add_row(std::span<std::uint16_t> sum, const std::int8_t* row) {
  constexpr std::size_t group = 64;
  std::size_t done = 0;
  for (; done + group <= sum.size(); done += group) {
    for (std::size_t i = 0; i < group; ++i) {
      sum[done + i] = static_cast<std::uint16_t>(sum[done + i] + row[done + i]);
    }
  }
  for (; done < sum.size(); ++done) {
    sum[done] = static_cast<std::uint16_t>(sum[done] + row[done]);
  }
}

}  // namespace

std::vector<std::uint16_t> sum_rows(std::span<const std::int8_t> rows, std::size_t row_cells,
                                    std::span<const block_id> blocks) {
  std::vector<std::uint16_t> sum(row_cells, 0);
  const std::size_t row_count = row_cells == 0 ? 0 : rows.size() / row_cells;
  for (const block_id block : blocks) {
    if (block >= row_count) {
      throw std::runtime_error("Signature row " + std::to_string(block) + " is not among the " +
                               std::to_string(row_count) + " rows.");
    }
    add_row(sum, rows.data() + std::size_t{block} * row_cells);
  }
  return sum;
}

std::vector<std::uint16_t> count_choices(std::span<const std::uint16_t> choices,
                                         std::uint32_t layers, std::uint32_t experts,
                                         std::uint32_t experts_per_token) {
  const std::size_t per_token = std::size_t{layers} * experts_per_token;
  if (per_token == 0 || choices.size() % per_token != 0) {
    throw std::runtime_error("Recorded expert choices do not make up whole tokens of " +
                             std::to_string(per_token) + " choices.");
  }
  std::vector<std::uint16_t> count(std::size_t{layers} * experts, 0);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] >= experts) {
      throw std::runtime_error("Recorded expert " + std::to_string(choices[i]) +
                               " is not among the model's " + std::to_string(experts) + ".");
    }
    const std::size_t layer = i % per_token / experts_per_token;
    ++count[layer * experts + choices[i]];
  }
  return count;
}

}  // namespace eldr::gpu
