// Pooling over dense channels-last images; one table per instruction set, all with the same results.
#pragma once
#include <cstdint>

namespace mge {

struct PoolShape {
    std::int64_t n, h, w, c, oh, ow, kh, kw, sh, sw, top, left;
    bool count_padding;
};

// Rows of the result, counted over all images, from `begin` to `end`.
template <class T>
using PoolRows = void (*)(const T* src, T* dst, const PoolShape& s, std::int64_t begin, std::int64_t end);

struct PoolingKernels {
    PoolRows<float> max_float, mean_float;
    PoolRows<std::uint16_t> max_bfloat16, mean_bfloat16, max_float16;
};

const PoolingKernels& pooling_kernels_base();
const PoolingKernels& pooling_kernels_avx2();
const PoolingKernels& pooling_kernels_avx512();
const PoolingKernels& active_pooling_kernels();

}  // namespace mge
