#pragma once
/// A weight tensor where it lies: read-only, row-major, in the dtype of the file.

#include <cstddef>
#include <cstdint>

namespace eldr::gpu {

enum class weight_dtype : std::uint8_t { f32, f16, bf16 };
constexpr std::size_t bytes_of(weight_dtype t) {
  return t == weight_dtype::f32 ? 4 : 2;
}

/// Rows are contiguous: row r starts at data + r * row_bytes(). A vector has one row. `data` is
/// aligned to its elements; the owner of the bytes outlives the view.
struct tensor_view {
  weight_dtype dtype = weight_dtype::f32;
  const std::byte* data = nullptr;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;

  std::size_t row_bytes() const { return std::size_t{cols} * bytes_of(dtype); }
  std::size_t size_bytes() const { return rows * row_bytes(); }
  const std::byte* row(std::uint32_t r) const { return data + r * row_bytes(); }
};

}  // namespace eldr::gpu
