// Convolutions whose groups have few channels; one table per instruction set. A vector holds neighbouring
// channels of the result, of several groups, and meets one input channel of each group at a time. Every sum
// takes its products one after the other, so its bits do not depend on how the result is divided. Bits of
// halves are those of bfloat16.
#pragma once
#include <cstdint>

#include "common/clamp.h"

namespace mge {

// Where the lanes of a vector read in a pixel: lane l of plane p at places[p * lanes + l], from `base` on.
struct Lanes {
    const std::int32_t* places;
    std::int64_t base, planes;
    int loads;  // whole vectors that hold all places, 1 or 2; 0: they are read one by one
};

// Pixels of a line of the result. The input lies in planes of a vector per pixel, with the padding.
struct GroupedLine {
    const float* const* rows;     // of the input, one for each row of the kernel
    const float *weights, *bias;  // [row of the kernel][plane][column of the kernel][lane]
    float* dst;
    std::int64_t width, planes, plane_step, high, wide;
    std::int64_t pixel_step, tap_step;  // numbers between pixels and between columns of the kernel
};

// Pixels of vectors, of which `count` lanes go to dst + i * step, after what is there was added to them if it
// is a residual, clamped.
struct StoredLine {
    const float* sums;
    float* dst;
    std::int64_t pixels, count, step;
    bool residual;
    Clamp clamp;
};

// dst[i] = bias + the sum of weights[t] * taps[t][i], clamped. Up to kTapsTail numbers behind `width` are
// read and written.
struct TappedRun {
    const float* const* taps;
    const float* weights;
    float bias;
    float* dst;
    std::int64_t width, count;
    Clamp clamp;
};

inline constexpr std::int64_t kTapsTail = 16;

// The same of one plane and a kernel of `side` x `side` numbers, 3, 5 or 7, for results in lines of at least
// a vector: a number that is read meets several rows of the kernel. Lines of both lie `pitch` apart.
struct SquareRun {
    const float *src, *weights;
    float bias;
    float* dst;
    std::int64_t pitch, high, wide, side, down, right;  // down, right: how far weights are apart
    Clamp clamp;
};

// What a pixel of a transposed convolution takes from a row: a pixel of it, and a column of the kernel; both
// as the place of their first channel.
struct TransposedTap {
    std::int64_t from, weight;
};

// A line of a transposed convolution of channels by themselves. Weights and bias have room behind the last
// channel for a vector.
template <class T>
struct TransposedLine {
    const T* const* rows;         // those of the input that reach the line
    const float* const* weights;  // of the row of the kernel that each of them meets: [column][channel]
    std::int64_t high;
    const std::int64_t* starts;  // the first tap of each pixel, and the end
    const TransposedTap* taps;
    const float* bias;
    T* dst;
    std::int64_t width, channels;
};

inline constexpr std::int64_t kLeastOfBoth = 32;  // channels by themselves that are laid as two halves

// A line of a convolution of channels by themselves, or of groups of `group` channels, at least as many as a
// vector has lanes, by a kernel of 3 or 5 columns with steps of 1 or 2: of bfloat16. Weights and bias have
// room behind the last channel for a vector.
struct ChannelLine {
    const std::uint16_t* const* rows;  // those of the input that reach the line
    // of the row of the kernel that each of them meets: [column][channel of the group that is read][channel];
    // of kLeastOfBoth channels by themselves or more first the even ones, from the middle of the room on the
    // odd ones
    const float* const* weights;
    std::int64_t high;
    const float* bias;
    std::uint16_t* dst;
    float* sums;  // where the results go instead, in float32; or null
    std::int64_t width, in_width, channels, group, room, wide, stride, before;
    Clamp clamp;
};

// `lines` of `count` numbers each, which begin so many numbers apart.
template <class From, class To>
using CopyLines = void (*)(const From* src, std::int64_t src_step, To* dst, std::int64_t dst_step,
                           std::int64_t lines, std::int64_t count);

struct GroupedKernels {
    std::int64_t lanes;
    // dst[p * plane_step + i * lanes + l] = the number of pixel i, which begins at src + i * channels, that
    // lane l of plane p reads.
    void (*spread)(const float* src, std::int64_t channels, std::int64_t pixels, const Lanes& lanes,
                   float* dst, std::int64_t plane_step);
    void (*sum)(const GroupedLine& line);
    void (*store)(const StoredLine& line);
    void (*sum_taps)(const TappedRun& run);
    void (*sum_square)(const SquareRun& run);
    // Lines of numbers, their bits as they are or from and to those of bfloat16.
    CopyLines<float, float> copy;
    CopyLines<std::uint16_t, float> widen;
    CopyLines<float, std::uint16_t> narrow;
    void (*transposed)(const TransposedLine<float>& line);
    void (*transposed_halves)(const TransposedLine<std::uint16_t>& line);
    void (*channels)(const ChannelLine& line);  // null without AVX512-BF16
};

const GroupedKernels& grouped_kernels_base();
const GroupedKernels& grouped_kernels_avx2();
const GroupedKernels& grouped_kernels_avx512();
const GroupedKernels& grouped_kernels_bf16();
const GroupedKernels& active_grouped_kernels();

}  // namespace mge
