#pragma once
/// Actor `signature_cache` (prefill nodes): the int8 rows co-indexed with the KV pool.
/// Takes sum_rows from prefill and answers rows_summed. The engine writes the rows; this actor
/// reads only rows of blocks that prefill keeps pinned until the answer.

#include <cstdint>
#include <span>

#include "actors/common/core.hpp"
#include "gpu/signature.hpp"

namespace eldr::actors {

class signature_cache_core final : public core {
 public:
  /// `rows`: [blocks][row_cells], row_cells = layers * experts; outlives the actor.
  signature_cache_core(std::span<const std::int8_t> rows, std::size_t row_cells)
      : rows_(rows), row_cells_(row_cells) {}

  void handle(context&, event& e) override {
    if (auto* ask = std::get_if<sum_rows>(&e)) {
      ++sums_;
      ask->reply_to->put(rows_summed{ask->ticket, gpu::sum_rows(rows_, row_cells_, ask->blocks)});
    } else if (auto* what = std::get_if<describe>(&e)) {
      what->reply_to->put(
          described{what->ticket,
                    {{"signature_row_bytes", static_cast<std::int64_t>(rows_.size())},
                     {"signature_sums_total", sums_}},
                    {}});
    }
  }

 private:
  std::span<const std::int8_t> rows_;
  std::size_t row_cells_;
  std::int64_t sums_ = 0;
};

}  // namespace eldr::actors
