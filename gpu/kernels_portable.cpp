#include "gpu/kernels_impl.hpp"
#include "gpu/kernels_tables.hpp"
#include "gpu/simd_portable.hpp"

namespace eldr::gpu {

constexpr kernels portable_table = kernels_of<portable_vec>("portable");

const kernels& portable_kernels() {
  return portable_table;
}

}  // namespace eldr::gpu
