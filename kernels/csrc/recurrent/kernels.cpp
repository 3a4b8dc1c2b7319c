// The baseline of the recurrent kernels, and the choice between instruction sets.
#define MGE_RECURRENT_KERNELS recurrent_kernels_base
#include "recurrent/kernels.inc"

#include "runtime/isa.h"

namespace mge {

const RecurrentKernels& active_recurrent_kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return recurrent_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return recurrent_kernels_avx2();
#endif
    return recurrent_kernels_base();
}

}  // namespace mge
