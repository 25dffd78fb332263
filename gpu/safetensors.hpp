#pragma once
/// Reader of the safetensors format (8 bytes header length, JSON header, tensor bytes).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/tensor_view.hpp"

namespace eldr::gpu {

struct stored_tensor {
  weight_dtype dtype;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;  ///< Within the file; not necessarily aligned.
};

using tensor_map = std::map<std::string, stored_tensor, std::less<>>;

/// Tensors of a file by name. Trusts nothing: header length, JSON, shapes and offsets are checked,
/// and the tensors must cover the file without overlap or hole, as the format demands. Throws
/// std::runtime_error that names the tensor and the fault (also a dtype that is not supported).
tensor_map read_safetensors(std::span<const std::byte> file);

/// "[64, 128]".
std::string format_shape(std::span<const std::uint64_t> shape);

}  // namespace eldr::gpu
