// The baseline of the sums of neighbours, and the choice between instruction sets.
#define MGE_RESIZING_KERNELS resizing_kernels_base
#include "resizing/kernels.inc"

#include "runtime/isa.h"

namespace mge {

const ResizingKernels& active_resizing_kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return resizing_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return resizing_kernels_avx2();
#endif
    return resizing_kernels_base();
}

}  // namespace mge
