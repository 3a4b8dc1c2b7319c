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

// The same of planes that lie in rows, n * c of them: rows of the result, counted over all planes. The room
// has kPlanesRows lines of planes_line(s) numbers for maxima, as many as a plane has rows for means, and one
// more.
template <class T>
using PoolPlanes = void (*)(const T* src, T* dst, const PoolShape& s, float* room, std::int64_t begin,
                            std::int64_t end);

inline constexpr std::int64_t kPlanesRows = 8;

// A row with its padding, and what a vector may read behind.
inline std::int64_t planes_line(const PoolShape& s) {
    const std::int64_t reach = (s.ow - 1) * s.sw + s.kw, wide = s.left + s.w;
    return (reach > wide ? reach : wide) + 64;
}

struct PoolingKernels {
    PoolRows<float> max_float, mean_float;
    PoolRows<std::uint16_t> max_bfloat16, mean_bfloat16, max_float16;
    PoolPlanes<float> max_planes, mean_planes;
    PoolPlanes<std::uint16_t> max_planes_bfloat16, mean_planes_bfloat16;
};

const PoolingKernels& pooling_kernels_base();
const PoolingKernels& pooling_kernels_avx2();
const PoolingKernels& pooling_kernels_avx512();
const PoolingKernels& active_pooling_kernels();

}  // namespace mge
