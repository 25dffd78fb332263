#pragma once
/// The tables that select_kernels() chooses from.

namespace eldr::gpu {

struct kernels;

const kernels& portable_kernels();
const kernels& avx2_kernels();  ///< Only where ELDR_HAVE_AVX2 is defined (x86-64 builds).

}  // namespace eldr::gpu
