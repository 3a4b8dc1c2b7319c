// The baseline of the float kernels, and the choice between instruction sets.
#define MGE_FLOAT_KERNELS float_kernels_base
#include "float/kernels.inc"

#include "runtime/isa.h"

namespace mge {

const FloatKernels& active_float_kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return float_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return float_kernels_avx2();
#endif
    return float_kernels_base();
}

}  // namespace mge
