// The baseline of products, and the choice between instruction sets.
#define MGE_PRODUCT_KERNELS product_kernels_base
#include "products/kernels.inc"

#include "runtime/isa.h"

namespace mge {

const ProductKernels& active_product_kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return product_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return product_kernels_avx2();
#endif
    return product_kernels_base();
}

}  // namespace mge
