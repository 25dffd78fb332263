// Compiled for AVX2, FMA and F16C: see CMakeLists.txt.
#include "gpu/kernels_impl.hpp"
#include "gpu/kernels_tables.hpp"
#include "gpu/simd_avx2.hpp"

namespace eldr::gpu {

constexpr kernels avx2_table = kernels_of<avx2_vec>("avx2");

const kernels& avx2_kernels() {
  return avx2_table;
}

}  // namespace eldr::gpu
