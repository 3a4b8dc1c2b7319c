// The baseline of the pooling kernels, and the choice between instruction sets.
#define MGE_POOLING_KERNELS pooling_kernels_base
#include "pooling/kernels.inc"

#include "runtime/isa.h"

namespace mge {

const PoolingKernels& active_pooling_kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return pooling_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return pooling_kernels_avx2();
#endif
    return pooling_kernels_base();
}

}  // namespace mge
