#include "gpu/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

namespace eldr::gpu {

namespace {

using nlohmann::json;

constexpr std::uint64_t header_bytes_max = 100'000'000;  // The format's own limit.
constexpr std::size_t rank_max = 8;
constexpr std::size_t prefix_bytes = 8;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("model.safetensors: " + what);
}

/// The JSON text of the header; its length stands before it.
std::string_view header_of(std::span<const std::byte> file) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  std::uint64_t length = 0;
  if (file.size() < prefix_bytes) {
    fail("the file is too short to be one.");
  }
  std::memcpy(&length, file.data(), prefix_bytes);
  if (length > header_bytes_max || length > file.size() - prefix_bytes) {
    fail(
        fmt::format("the header of {} bytes does not fit into the file of {}; it is cut off or "
                    "of another format.",
                    length, file.size()));
  }
  return {reinterpret_cast<const char*>(file.data()) + prefix_bytes, length};
}

/// Parses the header and refuses a tensor that is named twice (of which a JSON object would keep
/// one).
json parse_header(std::string_view text) {
  std::set<std::string> names;
  const auto check = [&](int depth, json::parse_event_t event, json& key) {
    if (depth == 1 && event == json::parse_event_t::key &&
        !names.insert(key.get<std::string>()).second) {
      fail(fmt::format("tensor {} is there twice.", key.get<std::string>()));
    }
    return true;
  };
  try {
    json header = json::parse(text, check);
    if (header.is_object()) {
      return header;
    }
  } catch (const json::exception&) {
    // The same to the user as another kind of value.
  }
  fail("the header is not a JSON object.");
}

weight_dtype parse_dtype(const std::string& name, const json& value) {
  if (value == "BF16") {
    return weight_dtype::bf16;
  }
  if (value == "F16") {
    return weight_dtype::f16;
  }
  if (value == "F32") {
    return weight_dtype::f32;
  }
  fail(fmt::format("tensor {} has dtype {}, which is not supported (BF16, F16 and F32 are).", name,
                   value.is_string() ? value.get_ref<const std::string&>() : "of another kind"));
}

std::vector<std::uint64_t> parse_numbers(const std::string& name, const json& value,
                                         const char* what) {
  std::vector<std::uint64_t> numbers;
  if (!value.is_array() || value.size() > rank_max) {
    fail(fmt::format("tensor {} has no valid {}.", name, what));
  }
  for (const json& number : value) {
    if (!number.is_number_unsigned()) {
      fail(fmt::format("tensor {} has no valid {}.", name, what));
    }
    numbers.push_back(number.get<std::uint64_t>());
  }
  return numbers;
}

/// Bytes of a tensor; none if they exceed 64 bits.
std::optional<std::uint64_t> bytes_of_shape(std::span<const std::uint64_t> shape,
                                            std::size_t unit) {
  std::uint64_t bytes = unit;
  for (const std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

stored_tensor parse_tensor(const std::string& name, const json& entry,
                           std::span<const std::byte> data) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    fail(fmt::format("tensor {} lacks dtype, shape or data_offsets.", name));
  }
  stored_tensor tensor{
      parse_dtype(name, entry["dtype"]), parse_numbers(name, entry["shape"], "shape"), {}};
  const auto offsets = parse_numbers(name, entry["data_offsets"], "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size()) {
    fail(
        fmt::format("tensor {} lies outside the file's {} data bytes; the file is cut off or "
                    "corrupt.",
                    name, data.size()));
  }
  if (bytes_of_shape(tensor.shape, bytes_of(tensor.dtype)) != offsets[1] - offsets[0]) {
    fail(fmt::format("tensor {} of shape {} does not fill its {} bytes.", name,
                     format_shape(tensor.shape), offsets[1] - offsets[0]));
  }
  tensor.data = data.subspan(offsets[0], offsets[1] - offsets[0]);
  return tensor;
}

void check_cover(const tensor_map& tensors, std::span<const std::byte> data) {
  std::vector<std::pair<std::span<const std::byte>, const std::string*>> parts;
  for (const auto& [name, tensor] : tensors) {
    parts.emplace_back(tensor.data, &name);
  }
  std::ranges::sort(
      parts, {}, [](const auto& part) { return std::pair(part.first.data(), part.first.size()); });
  const std::byte* next = data.data();
  for (const auto& [part, name] : parts) {
    if (part.data() != next) {
      fail(fmt::format("tensor {} does not begin where the one before it ends.", *name));
    }
    next += part.size();
  }
  if (next != data.data() + data.size()) {
    fail("there are bytes behind the last tensor.");
  }
}

}  // namespace

tensor_map read_safetensors(std::span<const std::byte> file) {
  const std::string_view text = header_of(file);
  const auto data = file.subspan(prefix_bytes + text.size());
  const json header = parse_header(text);
  tensor_map tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      tensors.emplace(name, parse_tensor(name, entry, data));
    }
  }
  check_cover(tensors, data);
  return tensors;
}

std::string format_shape(std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace eldr::gpu
