// Float kernels over dense channels-last arrays; one table per instruction set, all with the same results.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "common/names.h"

namespace mge {

// Windows over three axes of planes that lie in rows, whose means are taken.
struct PlanesPool {
    std::array<std::int64_t, 3> in, out, kernel, stride, dilation, before;
    bool count_padding;
    // of each tap along the last axis that lies inside for some element: the first one, how many, and the
    // place of the tap for the first
    std::vector<std::array<std::int64_t, 3>> columns;
    std::vector<float> inside;  // how many taps count, of each element along the last axis
};

inline constexpr std::int64_t kLongestPooledRow = 4096;  // numbers, which lie on the stack

// A convolution of rows-first images [n,c,h,w] with weights [o,c/groups,kh,kw].
struct ConvShape {
    std::int64_t n, c, h, w, o, kh, kw, groups, oh, ow, sh, sw, dh, dw, top, left;

    // Rows and columns of an image with its padding, as far as the windows reach.
    std::int64_t rows() const { return (oh - 1) * sh + (kh - 1) * dh + 1; }
    std::int64_t cols() const { return (ow - 1) * sw + (kw - 1) * dw + 1; }
};

// Products of float matrices [rows,depth] and [depth,cols] into dense ones. Steps of a and b are in elements:
// from row to row, from column to column.
struct MatmulShape {
    std::int64_t rows, depth, cols, a_row, a_col, b_row, b_col;
};

// Softmax along the middle axis of [outer,n,inner]; its logarithm with `log`. Exponentials are added as NumPy
// adds neighbours, or `in_turn` (always if there is an inner axis).
struct SoftmaxShape {
    std::int64_t outer, n, inner;
    bool in_turn, log;
};

// Groups of `parts` channels of `inner` numbers, each normalised by its mean and the root of its variance;
// then, once or twice, the numbers of each channel times a weight, plus a bias: factors [weight, bias,
// ...][channel].
struct ChannelNorm {
    std::int64_t groups, parts, inner;
    float eps;
    int pairs;
    const float* factors;
};

// Functions of one value, by the names of their ops; leaky_relu has the slope as its parameter.
#define MGE_FUNCTIONS(X)        \
    X(kSigmoid, "sigmoid")      \
    X(kSilu, "silu")            \
    X(kHsigmoid, "hsigmoid")    \
    X(kHswish, "hswish")        \
    X(kTanh, "tanh")            \
    X(kGelu, "gelu")            \
    X(kErf, "erf")              \
    X(kSoftplus, "softplus")    \
    X(kLeakyRelu, "leaky_relu") \
    X(kExp, "exp")              \
    X(kLog, "log")              \
    X(kSqrt, "sqrt")            \
    X(kRsqrt, "rsqrt")          \
    X(kExpm1, "expm1")          \
    X(kLog1p, "log1p")          \
    X(kSin, "sin")              \
    X(kCos, "cos")              \
    X(kTan, "tan")              \
    X(kAsin, "asin")            \
    X(kAcos, "acos")            \
    X(kAtan, "atan")            \
    X(kSinh, "sinh")            \
    X(kCosh, "cosh")            \
    X(kAsinh, "asinh")          \
    X(kAcosh, "acosh")          \
    X(kAtanh, "atanh")

enum class Function { MGE_FUNCTIONS(MGE_MEMBER) };
inline constexpr std::array kFunctionNames{MGE_FUNCTIONS(MGE_NAME)};

inline constexpr std::int64_t kMeanTail = 16;  // numbers that a vector may read and write behind a row
inline std::int64_t mean_room(std::int64_t cols, std::int64_t window) {
    return 2 * (cols + kMeanTail) + window;
}

struct FloatKernels {
    // Means of `window` neighbours in rows, the first of which lies `before` in front; beyond the ends are
    // zeros. The room has mean_room(cols, window) numbers.
    void (*neighbour_mean)(const float* src, float* dst, float* room, std::int64_t rows, std::int64_t cols,
                           std::int64_t window, std::int64_t before);
    // The same of bfloat16, rounded once.
    void (*neighbour_mean_of_halves)(const std::uint16_t* src, std::uint16_t* dst, float* room,
                                     std::int64_t rows, std::int64_t cols, std::int64_t window,
                                     std::int64_t before);
    void (*pool_planes)(const float* src, float* dst, const PlanesPool& s, std::int64_t planes);
    // The same of bfloat16, whose rows have at most kLongestPooledRow numbers.
    void (*pool_planes_of_halves)(const std::uint16_t* src, std::uint16_t* dst, const PlanesPool& s,
                                  std::int64_t planes);
    // Sums of rows, each divided by `divisor`: the numbers of a row as NumPy adds neighbours, or `in_turn`.
    void (*row_sum)(const float* src, float* dst, std::int64_t rows, std::int64_t cols, float divisor,
                    bool in_turn);
    // dst[i][c]: the sum over p of src[i][p][c] as NumPy adds neighbours, divided by `divisor`.
    void (*column_sum)(const float* src, float* dst, std::int64_t n, std::int64_t rows, std::int64_t cols,
                       float divisor);
    // The same of bfloat16 numbers: sums in float32, results rounded once.
    void (*column_sum_of_halves)(const std::uint16_t* src, std::uint16_t* dst, std::int64_t n,
                                 std::int64_t rows, std::int64_t cols, float divisor);
    // The largest number of a row, or the smallest; n >= 1.
    float (*row_extreme)(const float* src, std::int64_t n, bool most);
    // dst[i]: the larger of dst[i] and src[i], or the smaller.
    void (*column_extreme)(const float* src, float* dst, std::int64_t n, bool most);
    // The places of the largest numbers, or the smallest, along the first axis of src [n][cols], n >= 1.
    void (*places)(const float* src, std::int32_t* dst, std::int64_t n, std::int64_t cols, bool most);
    void (*apply)(const float* src, float* dst, std::int64_t size, Function function, float a);
    // The same of bfloat16: computed in float32, rounded once.
    void (*apply_halves)(const std::uint16_t* src, std::uint16_t* dst, std::int64_t size, Function function,
                         float a);
    void (*softmax)(const float* src, float* dst, const SoftmaxShape& s, std::int64_t begin,
                    std::int64_t end);
    // The same of bfloat16 without an inner axis, with room for 2 * softmax_piece(n) numbers.
    void (*softmax_halves)(const std::uint16_t* src, std::uint16_t* dst, float* room, const SoftmaxShape& s,
                           std::int64_t begin, std::int64_t end);
    // (x - mean) / sqrt(variance + eps) of rows, times weight, plus bias; both may be null. Without `centred`
    // the mean is taken as 0; with `reciprocal` rows are multiplied by 1 / sqrt(...).
    void (*norm)(const float* src, const float* weight, const float* bias, float* dst, std::int64_t rows,
                 std::int64_t cols, float eps, bool centred, bool reciprocal);
    // The same of bfloat16, with room for kNormedRows + 2 rows.
    void (*norm_halves)(const std::uint16_t* src, const std::uint16_t* weight, const std::uint16_t* bias,
                        std::uint16_t* dst, float* room, std::int64_t rows, std::int64_t cols, float eps,
                        bool centred, bool reciprocal);
    // Of the groups of all samples those from `begin` to `end`, where src and dst point to the first of
    // these.
    void (*channel_norm)(const float* src, float* dst, const ChannelNorm& s, std::int64_t begin,
                         std::int64_t end);
    // The same of bfloat16, with room for kNormedRows groups.
    void (*channel_norm_halves)(const std::uint16_t* src, std::uint16_t* dst, float* room,
                                const ChannelNorm& s, std::int64_t begin, std::int64_t end);
    // For small images. padded: room for c * rows * cols numbers and kConvTail more. bias may be null.
    void (*conv)(const float* src, const float* weights, const float* bias, float* dst, float* padded,
                 const ConvShape& s);
    // For small matrices. packed: room for depth * kMatmulLanes numbers.
    void (*matmul)(const float* a, const float* b, float* dst, float* packed, const MatmulShape& s);
};

inline constexpr std::int64_t kNormedRows = 4, kConvTail = 64, kMatmulLanes = 8;
inline constexpr std::int64_t kSoftmaxTogether = 1024;  // exponentials that lie in one piece
inline std::int64_t softmax_piece(std::int64_t n) { return n > kSoftmaxTogether ? n : kSoftmaxTogether; }

const FloatKernels& float_kernels_base();
const FloatKernels& float_kernels_avx2();
const FloatKernels& float_kernels_avx512();
const FloatKernels& active_float_kernels();

}  // namespace mge
