#pragma once
/// Signature rows: how many of a block's tokens chose each expert, per layer.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/geometry.hpp"

namespace eldr::gpu {

/// Sums the rows ([layers][experts] int8 each, row id = block id) of `blocks` into uint16 cells
/// [layers][experts]. Exact for contexts up to 65,535 tokens.
std::vector<std::uint16_t> sum_rows(std::span<const std::int8_t> rows, std::size_t row_cells,
                                    std::span<const block_id> blocks);

/// Recount from recorded choices [tokens][layers][k]: what sum_rows must equal.
std::vector<std::uint16_t> count_choices(std::span<const std::uint16_t> choices,
                                         std::uint32_t layers, std::uint32_t experts,
                                         std::uint32_t experts_per_token);

}  // namespace eldr::gpu
