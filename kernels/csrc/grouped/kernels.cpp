// The baseline of small groups, and the choice between instruction sets.
#define MGE_GROUPED_KERNELS grouped_kernels_base
#include "grouped/kernels.inc"

#include "runtime/isa.h"

namespace mge {

const GroupedKernels& active_grouped_kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kBf16) return grouped_kernels_bf16();
    if (active_isa() >= Isa::kAvx512) return grouped_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return grouped_kernels_avx2();
#endif
    return grouped_kernels_base();
}

}  // namespace mge
