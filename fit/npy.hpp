#pragma once
/// NumPy's .npy files (format versions 1 and 2, C order, little endian) of the four element types
/// that traces use. Source of the format: numpy.lib.format.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace eldr::fit {

enum class npy_type : std::uint8_t { uint8, uint16, int32, float32 };

std::size_t item_bytes(npy_type type) noexcept;

struct npy_header {
  npy_type type = npy_type::uint8;
  std::vector<std::uint64_t> shape;  ///< At most 8 dimensions; the product of all fits.
  std::size_t data_offset = 0;       ///< Bytes before the first element.

  std::uint64_t elements() const noexcept;
};

/// Reads the header at the start of `file`. `name` is used in errors. Throws fit_error on anything
/// but a header of the supported kind whose data is exactly the rest of the file.
npy_header parse_npy_header(std::span<const std::byte> file, std::string_view name);

/// A read-only array, mapped from its file or held in memory.
class npy_array {
 public:
  /// Maps the file. Throws fit_error when it cannot be read or is not a supported .npy file. The
  /// file must not shrink while it is mapped.
  static npy_array open(const std::filesystem::path& path);
  /// Takes a whole .npy file that is already in memory.
  static npy_array from_bytes(std::vector<std::byte> file, std::string_view name);

  npy_type type() const noexcept { return header_.type; }
  const std::vector<std::uint64_t>& shape() const noexcept { return header_.shape; }
  std::uint64_t elements() const noexcept { return header_.elements(); }
  std::span<const std::byte> data() const noexcept { return data_; }

  /// Element `index` of the flattened array, read as T, which must be the array's type. Header
  /// sizes are a writer's choice, so elements need not be aligned in the file.
  template <typename T>
  T at(std::uint64_t index) const noexcept {
    T value;
    std::memcpy(&value, data_.data() + index * sizeof(T), sizeof(T));
    return value;
  }

 private:
  npy_header header_;
  std::span<const std::byte> data_;
  std::shared_ptr<const void> owner_;
};

/// Writes an array row by row; the number of rows is filled in at the end.
class npy_writer {
 public:
  /// `row_shape`: the dimensions after the first. Replaces the file.
  npy_writer(const std::filesystem::path& path, npy_type type,
             std::vector<std::uint64_t> row_shape);

  /// Appends whole rows. Throws fit_error when the bytes are no whole number of rows or the disk
  /// refuses them.
  void append(std::span<const std::byte> rows);
  /// Completes the header. Without it the file is no valid .npy file.
  void finish();

  std::uint64_t rows() const noexcept { return rows_; }

 private:
  void write_header();
  void check() const;

  std::filesystem::path path_;
  npy_type type_;
  std::vector<std::uint64_t> row_shape_;
  std::uint64_t row_bytes_;
  std::uint64_t rows_ = 0;
  std::ofstream file_;
};

}  // namespace eldr::fit
