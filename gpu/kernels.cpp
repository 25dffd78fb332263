#include "gpu/kernels.hpp"

#include <stdexcept>

#include "gpu/kernels_tables.hpp"

namespace eldr::gpu {

bool cpu_has_avx2() {
#ifdef ELDR_HAVE_AVX2
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

const kernels& select_kernels(isa which) {
  if (which == isa::avx2 && !cpu_has_avx2()) {
    throw std::runtime_error(
        "This processor lacks AVX2, FMA or F16C; choose the portable kernels instead.");
  }
#ifdef ELDR_HAVE_AVX2
  if (which != isa::portable && cpu_has_avx2()) {
    return avx2_kernels();
  }
#endif
  return portable_kernels();
}

}  // namespace eldr::gpu
