// Products of float32 rows with columns that lie in panels; one table per instruction set. Every sum takes
// its products one after the other, so its bits do not depend on how rows and columns are divided; where the
// instruction set has a fused multiply-add, a product is not rounded.
#pragma once
#include <cstdint>

#include "common/clamp.h"

namespace mge {

// dst[r * step + c] = the sum over k of a[r * a_step + k] * panel[k][c], times scale, plus bias[c], plus
// residual[r * residual_step + c], clamped; bias and residual may be null, and the residual may be dst. There
// may be up to a panel's columns; `panel` and `bias` have whole vectors of them, and the next panel lies
// behind this one.
struct Block {
    const float *a, *panel, *bias, *residual;
    float* dst;
    std::int64_t rows, depth, columns, a_step, residual_step, step;
    float scale;
    Clamp clamp;
};

// A kernel for panels of so many columns.
struct Tiles {
    std::int64_t panel;
    void (*multiply)(const Block& block);
};

struct ProductKernels {
    std::int64_t vector;  // columns
    // Tiles of many rows and few columns read the least of a panel. Those of few rows and many columns are
    // for few rows, for shallow products, whose time goes into writing, and for rows that share places in the
    // cache.
    Tiles tall, wide;

    const Tiles& tiles(std::int64_t rows, std::int64_t depth) const {
        constexpr std::int64_t kFew = 4, kShallow = 256, kPlaces = 1024;
        return rows < kFew || depth < kShallow || depth % kPlaces == 0 ? wide : tall;
    }
};

const ProductKernels& product_kernels_base();
const ProductKernels& product_kernels_avx2();
const ProductKernels& product_kernels_avx512();
const ProductKernels& active_product_kernels();

}  // namespace mge
