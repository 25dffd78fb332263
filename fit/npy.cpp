#include "fit/npy.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <optional>
#include <system_error>
#include <utility>

#include "fit/error.hpp"

namespace eldr::fit {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are mapped as they lie on disk");

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t dimensions_max = 8;
// A written header always has this size, so that the row count can be filled in later.
constexpr std::size_t written_header_bytes = 128;

[[noreturn]] void refuse(std::string_view name, const std::string& reason) {
  throw fit_error(std::string(name) + " is not a usable .npy file: " + reason + ".");
}

/// The header's dictionary is a Python literal; this reads the part of the language that NumPy
/// writes: strings, booleans and tuples of integers.
class dictionary_parser {
 public:
  dictionary_parser(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  npy_header parse() {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = read_string();
      expect(':');
      read_value(key);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!text_.empty()) {
      refuse(name_, "there is text after the header's dictionary");
    }
    if (!type_ || !order_seen_ || !shape_) {
      refuse(name_, "its header lacks descr, fortran_order or shape");
    }
    return {.type = *type_, .shape = std::move(*shape_)};
  }

 private:
  void skip_space() {
    const auto begin = text_.find_first_not_of(" \t\n");
    text_.remove_prefix(begin == std::string_view::npos ? text_.size() : begin);
  }

  bool accept(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) {
      return false;
    }
    text_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (!accept(c)) {
      refuse(name_, std::string("its header is malformed ('") + c + "' expected)");
    }
  }

  std::string_view read_string() {
    skip_space();
    const char quote = text_.empty() ? '\0' : text_.front();
    if (quote != '\'' && quote != '"') {
      refuse(name_, "its header is malformed (a string expected); record arrays are not supported");
    }
    const auto end = text_.find(quote, 1);
    if (end == std::string_view::npos) {
      refuse(name_, "its header is malformed (a string does not end)");
    }
    const std::string_view value = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return value;
  }

  void read_value(std::string_view key) {
    if (key == "descr" && !type_) {
      type_ = read_type();
    } else if (key == "fortran_order" && !order_seen_) {
      read_order();
    } else if (key == "shape" && !shape_) {
      shape_ = read_shape();
    } else {
      refuse(name_, "its header has an unknown or repeated key '" + std::string(key) + "'");
    }
  }

  npy_type read_type() {
    const std::string_view descr = read_string();
    if (descr == "|u1") {
      return npy_type::uint8;
    }
    if (descr == "<u2") {
      return npy_type::uint16;
    }
    if (descr == "<i4") {
      return npy_type::int32;
    }
    if (descr == "<f4") {
      return npy_type::float32;
    }
    refuse(name_, "its element type '" + std::string(descr) +
                      "' is not supported (uint8, uint16, int32 and float32, little endian, are)");
  }

  void read_order() {
    skip_space();
    constexpr std::string_view c_order = "False";
    if (!text_.starts_with(c_order)) {
      refuse(name_, "it is not in C order; save it again after numpy.ascontiguousarray");
    }
    text_.remove_prefix(c_order.size());
    order_seen_ = true;
  }

  std::vector<std::uint64_t> read_shape() {
    std::vector<std::uint64_t> shape;
    expect('(');
    while (!accept(')')) {
      skip_space();
      std::uint64_t value = 0;
      const auto [end, failure] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
      if (failure != std::errc{} || shape.size() == dimensions_max) {
        refuse(name_, "its shape is malformed or has more than 8 dimensions");
      }
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      shape.push_back(value);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }

  std::string_view text_;
  std::string_view name_;
  std::optional<npy_type> type_;
  bool order_seen_ = false;
  std::optional<std::vector<std::uint64_t>> shape_;
};

/// Bytes of all elements; nothing when they do not fit into 64 bits.
std::optional<std::uint64_t> data_bytes(const npy_header& header) {
  std::uint64_t bytes = item_bytes(header.type);
  for (const std::uint64_t extent : header.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

const char* descr(npy_type type) noexcept {
  switch (type) {
    case npy_type::uint8:
      return "|u1";
    case npy_type::uint16:
      return "<u2";
    case npy_type::int32:
      return "<i4";
    case npy_type::float32:
      return "<f4";
  }
  return "";
}

struct mapping {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

[[noreturn]] void refuse_unreadable(const std::filesystem::path& path) {
  throw fit_error("Cannot read " + path.string() + ": " +
                  std::error_code(errno, std::generic_category()).message() + ".");
}

mapping map_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    refuse_unreadable(path);
  }
  const std::shared_ptr<void> closer(nullptr, [descriptor](void*) { ::close(descriptor); });
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    refuse_unreadable(path);
  }
  if (!S_ISREG(status.st_mode) || status.st_size == 0) {
    refuse(path.string(), "it is empty or not a regular file");
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address == MAP_FAILED) {
    refuse_unreadable(path);
  }
  return {{address, [bytes](const void* start) { ::munmap(const_cast<void*>(start), bytes); }},
          {static_cast<const std::byte*>(address), bytes}};
}

}  // namespace

std::size_t item_bytes(npy_type type) noexcept {
  switch (type) {
    case npy_type::uint8:
      return 1;
    case npy_type::uint16:
      return 2;
    case npy_type::int32:
    case npy_type::float32:
      return 4;
  }
  return 0;
}

std::uint64_t npy_header::elements() const noexcept {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape) {
    product *= extent;
  }
  return product;
}

npy_header parse_npy_header(std::span<const std::byte> file, std::string_view name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(magic)) {
    refuse(name, "it does not start with NumPy's magic bytes");
  }
  if (text.size() < magic.size() + 4) {
    refuse(name, "it is truncated");
  }
  const auto major = static_cast<unsigned char>(text[magic.size()]);
  if (major != 1 && major != 2) {
    refuse(name, "format version " + std::to_string(major) + " is not supported (1 and 2 are)");
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t prefix = magic.size() + 2 + length_bytes;
  if (text.size() < prefix) {
    refuse(name, "it is truncated");
  }
  std::uint32_t length = 0;
  std::memcpy(&length, file.data() + magic.size() + 2, length_bytes);
  if (length > text.size() - prefix) {
    refuse(name, "it is truncated within the header");
  }
  npy_header header = dictionary_parser(text.substr(prefix, length), name).parse();
  header.data_offset = prefix + length;
  const auto wanted = data_bytes(header);
  const std::uint64_t present = text.size() - header.data_offset;
  if (!wanted || *wanted != present) {
    refuse(name, "its shape asks for " + (wanted ? std::to_string(*wanted) : "too many") +
                     " bytes of data and there are " + std::to_string(present));
  }
  return header;
}

npy_array npy_array::open(const std::filesystem::path& path) {
  mapping mapped = map_file(path);
  npy_array array;
  array.header_ = parse_npy_header(mapped.bytes, path.string());
  array.data_ = mapped.bytes.subspan(array.header_.data_offset);
  array.owner_ = std::move(mapped.owner);
  return array;
}

npy_array npy_array::from_bytes(std::vector<std::byte> file, std::string_view name) {
  const auto held = std::make_shared<const std::vector<std::byte>>(std::move(file));
  npy_array array;
  array.header_ = parse_npy_header(*held, name);
  array.data_ = std::span(*held).subspan(array.header_.data_offset);
  array.owner_ = held;
  return array;
}

npy_writer::npy_writer(const std::filesystem::path& path, npy_type type,
                       std::vector<std::uint64_t> row_shape)
    : path_(path),
      type_(type),
      row_shape_(std::move(row_shape)),
      row_bytes_(item_bytes(type)),
      file_(path, std::ios::binary | std::ios::trunc) {
  for (const std::uint64_t extent : row_shape_) {
    row_bytes_ *= extent;
  }
  write_header();
}

void npy_writer::append(std::span<const std::byte> rows) {
  if (row_bytes_ == 0 || rows.size() % row_bytes_ != 0) {
    throw fit_error("Rows for " + path_.string() + " must be a multiple of " +
                    std::to_string(row_bytes_) + " bytes, not " + std::to_string(rows.size()) +
                    ".");
  }
  file_.write(reinterpret_cast<const char*>(rows.data()),
              static_cast<std::streamsize>(rows.size()));
  check();
  rows_ += rows.size() / row_bytes_;
}

void npy_writer::finish() {
  file_.seekp(0);
  write_header();
  file_.close();
  check();
}

void npy_writer::write_header() {
  std::string dictionary = std::string("{'descr': '") + descr(type_) +
                           "', 'fortran_order': False, 'shape': (" + std::to_string(rows_) + ",";
  for (const std::uint64_t extent : row_shape_) {
    dictionary += " " + std::to_string(extent) + ",";
  }
  // NumPy writes a trailing comma only for one dimension; both are valid literals.
  dictionary += "), }";
  std::string header(magic);
  header += {'\x01', '\x00', '\x76', '\x00'};  // Version 1.0; 118 bytes follow.
  header += dictionary;
  if (header.size() >= written_header_bytes) {
    throw fit_error("The shape of " + path_.string() + " is too long for a .npy header.");
  }
  header.resize(written_header_bytes - 1, ' ');
  header += '\n';
  file_.write(header.data(), static_cast<std::streamsize>(header.size()));
  check();
}

void npy_writer::check() const {
  if (!file_) {
    throw fit_error("Cannot write " + path_.string() + "; is the folder there, and the disk full?");
  }
}

}  // namespace eldr::fit
