// Float kernels over dense channels-last arrays; one table per instruction set, all with the same results.
#pragma once
#include <cstdint>

namespace mge {

struct PoolShape {
    std::int64_t n, h, w, c, oh, ow, kh, kw, sh, sw, top, left;
    bool count_padding;
};

struct FloatKernels {
    void (*max_pool)(const float* src, float* dst, const PoolShape& s, std::int64_t row_begin,
                     std::int64_t row_end);
    void (*avg_pool)(const float* src, float* dst, const PoolShape& s, std::int64_t row_begin,
                     std::int64_t row_end);
    void (*mean)(const float* src, float* dst, std::int64_t n, std::int64_t hw, std::int64_t c);
    void (*clamp)(const float* src, float* dst, std::int64_t size, float lo, float hi);  // keeps NaN
    void (*add)(const float* a, const float* b, float* dst, std::int64_t size);
    void (*mul)(const float* a, const float* b, float* dst, std::int64_t size);
};

const FloatKernels& float_kernels_base();
const FloatKernels& float_kernels_avx2();
const FloatKernels& float_kernels_avx512();
const FloatKernels& active_float_kernels();

}  // namespace mge
