// The baseline of sums in one order, and the choice between instruction sets.
#define MGE_ORDERED_KERNELS ordered_kernels_base
#include "ordered/kernels.inc"

#include "runtime/isa.h"

namespace mge {

const OrderedKernels& active_ordered_kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return ordered_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return ordered_kernels_avx2();
#endif
    return ordered_kernels_base();
}

}  // namespace mge
