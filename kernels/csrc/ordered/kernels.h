// Sums of float32 products in one order; one table per instruction set, all with the same results.
#pragma once
#include <cstdint>

namespace mge {

// Products of rows: number k of row r is a[r][shift + at[k]], and sums go to dst[r]. They begin with 0 where
// they are fresh, else with what dst has; `bias`, if any, is added last.
struct OrderedRows {
    const float* const* a;
    const std::int64_t* at;
    std::int64_t shift, rows, depth;
    float* const* dst;
    bool fresh;
    const float* bias;
};

struct OrderedKernels {
    // Columns to .. to + cols of dst: rows times packed columns, in panels as in panels.h; bias as long as
    // panels.
    void (*multiply)(const OrderedRows& rows, const float* packed, std::int64_t to, std::int64_t cols);
    // dst[r][c] = the sum over k of a[r][at[k] + c] * weights[k][c] for each channel; weights and bias are as
    // long as panels.
    void (*multiply_channels)(const OrderedRows& rows, const float* weights, std::int64_t channels);
};

const OrderedKernels& ordered_kernels_base();
const OrderedKernels& ordered_kernels_avx2();
const OrderedKernels& ordered_kernels_avx512();
const OrderedKernels& active_ordered_kernels();

}  // namespace mge
