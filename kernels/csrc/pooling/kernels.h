// Pooling over dense channels-last images; one table per instruction set, all with the same results.
#pragma once
#include <array>
#include <cstdint>

namespace mge {

struct PoolShape {
    std::int64_t n, h, w, c, oh, ow, kh, kw, sh, sw, top, left;
    bool count_padding;
};

// Rows of the result, counted over all images, from `begin` to `end`.
template <class T>
using PoolRows = void (*)(const T* src, T* dst, const PoolShape& s, std::int64_t begin, std::int64_t end);

// Means of planes that lie in rows, n * c of them: rows of the result, counted over all planes. The room has
// as many lines of planes_line(s) numbers as a plane has rows, and one more.
template <class T>
using MeanPlanes = void (*)(const T* src, T* dst, const PoolShape& s, float* room, std::int64_t begin,
                            std::int64_t end);

// A row with its padding, and what a vector may read behind.
inline std::int64_t planes_line(const PoolShape& s) {
    const std::int64_t reach = (s.ow - 1) * s.sw + s.kw, wide = s.left + s.w;
    return (reach > wide ? reach : wide) + 64;
}

// Windows over depth, rows and columns of planes that lie in rows.
struct PlaneWindows {
    std::array<std::int64_t, 3> in, out, kernel, stride, dilation, before;
    std::int64_t line, lines;  // of the room: numbers of a row with its padding and what a vector may read
};

// Their largest numbers: rows of the result, counted over all planes.
template <class T>
using MaxPlanes = void (*)(const T* src, T* dst, const PlaneWindows& s, float* room, std::int64_t begin,
                           std::int64_t end);

struct PoolingKernels {
    PoolRows<float> max_float, mean_float;
    PoolRows<std::uint16_t> max_bfloat16, mean_bfloat16, max_float16;
    MaxPlanes<float> max_planes;
    MaxPlanes<std::uint16_t> max_planes_bfloat16;
    MeanPlanes<float> mean_planes;
    MeanPlanes<std::uint16_t> mean_planes_bfloat16;
};

const PoolingKernels& pooling_kernels_base();
const PoolingKernels& pooling_kernels_avx2();
const PoolingKernels& pooling_kernels_avx512();
const PoolingKernels& active_pooling_kernels();

}  // namespace mge
