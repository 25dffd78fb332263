#pragma once
/// A growing matrix of floats with a pointer to each row, as the kernels take it.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eldr::gpu {

/// Grows only; contents are not kept when it grows.
class row_buffer {
 public:
  explicit row_buffer(std::uint32_t cols = 0) : cols_(cols) {}

  void reserve(std::uint32_t rows) {
    if (rows <= rows_.size()) {
      return;
    }
    data_.resize(std::size_t{rows} * cols_);
    rows_.resize(rows);
    for (std::uint32_t r = 0; r < rows; ++r) {
      rows_[r] = data_.data() + std::size_t{r} * cols_;
    }
  }
  std::uint32_t cols() const { return cols_; }
  float* row(std::uint32_t r) const { return rows_[r]; }
  /// Pointers to row r and those after it.
  float* const* from(std::uint32_t r = 0) const { return rows_.data() + r; }

 private:
  std::uint32_t cols_;
  std::vector<float> data_;
  std::vector<float*> rows_;
};

}  // namespace eldr::gpu
