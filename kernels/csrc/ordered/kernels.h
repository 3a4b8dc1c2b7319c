// Sums of float32 products in one order; one table per instruction set, all with the same results.
#pragma once
#include <cstdint>

namespace mge {

struct OrderedKernels {
    // dst[r * step + c] += the sum over k of a[r][k] * packed column c; panels of columns as in panels.h.
    void (*multiply)(const float* const* a, std::int64_t rows, std::int64_t depth, const float* packed,
                     float* dst, std::int64_t step, std::int64_t cols);
    // dst[r * channels + c] += the sum over t of a[r * taps + t][c] * weights[t * channels + c].
    void (*multiply_channels)(const float* const* a, std::int64_t rows, std::int64_t taps,
                              const float* weights, float* dst, std::int64_t channels);
};

const OrderedKernels& ordered_kernels_base();
const OrderedKernels& ordered_kernels_avx2();
const OrderedKernels& ordered_kernels_avx512();
const OrderedKernels& active_ordered_kernels();

}  // namespace mge
