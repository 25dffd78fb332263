#pragma once
/// Number formats in which weights are stored.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace eldr::gpu {

enum class weight_dtype : std::uint8_t { bf16, f16, f32 };

constexpr std::size_t bytes_of(weight_dtype t) {
  return t == weight_dtype::f32 ? 4 : 2;
}

constexpr std::string_view name_of(weight_dtype t) {
  switch (t) {
    case weight_dtype::bf16:
      return "bf16";
    case weight_dtype::f16:
      return "f16";
    case weight_dtype::f32:
      return "f32";
  }
  return "?";
}

}  // namespace eldr::gpu
