// Convolutions of 3 x 3 by Winograd's algorithm F(4 x 4, 3 x 3): of tiles of 6 x 6 numbers of the input come
// 4 x 4 of the result, with 36 products a channel instead of 144. One table per instruction set.
//
// The points are 0, 3/4, -3/4, 3/2, -3/2 and infinity: of those whose factors are short they were measured to
// have the smallest error, about twice that of sums of the products as they are (1, -1, 2, -2 have six
// times). Every sum takes the channels one after the other with fma, so bits depend neither on the division
// of the work nor on the width of vectors.
#pragma once
#include <cstdint>

#include "common/clamp.h"
#include "common/float_function.h"

namespace mge {

inline constexpr int kTile = 6, kPoints = kTile * kTile, kGiven = 4;  // a side of a tile of input, of result

// A tile of the input, whose rows and columns outside of [first, end) are zeros.
struct TileRead {
    const float* src;  // its first number, which may be outside
    std::int64_t row_step, pixel_step, channels;
    int first_row, end_row, first_column, end_column;
    float* dst;  // of point p and vector v of channels at dst + p * point_step + v * vector_step
    std::int64_t point_step, vector_step;
};

// sums[r][c] = the sum over k of a[k / lanes][r][k % lanes] * b[k][c], for a panel of two vectors of columns.
struct TileProduct {
    const float *a, *b;
    float* sums;
    std::int64_t depth, rows;
};

// The part of a tile that is inside of the result. With a residual what is at dst is added.
struct TileWrite {
    const float* sums;  // of point p at sums + p * point_step: two vectors
    std::int64_t point_step;
    const float* bias;  // two vectors
    float* dst;
    std::int64_t row_step, pixel_step, count;  // count: channels, at most two vectors
    int rows, columns;
    bool residual;
    Clamp clamp;
    const FloatFunction* after;  // none if it has no code
};

struct WinogradKernels {
    std::int64_t lanes, most_rows;
    void (*read)(const TileRead& tile);
    void (*multiply)(const TileProduct& product);
    void (*write)(const TileWrite& tile);
};

const WinogradKernels& winograd_kernels_avx2();
const WinogradKernels& winograd_kernels_avx512();

}  // namespace mge
