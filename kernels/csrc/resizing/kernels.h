// Sums of a few neighbours, in float32 and in bfloat16; one table per instruction set, all with the same
// results: a sum takes its products one after the other.
#pragma once
#include <cstdint>

namespace mge {

// Results of one row, in blocks of as many as a vector has lanes. The last block begins where it ends with
// the row, and repeats what the one before wrote.
struct ResizedRow {
    std::int64_t out, taps, blocks;
    // of each block: where it begins, and how many vectors hold all that one of its taps reads (1, 2; 0:
    // more)
    const std::int32_t *begins, *loads;
    const std::int32_t* bases;   // [block][tap]: where those vectors begin
    const std::int32_t* places;  // [block][tap][lane]: from there on
    const float* weights;        // the same
};

inline constexpr std::int64_t kResizedTail = 32;  // numbers behind a row that may be read

template <class From, class To>
using Weighted = void (*)(const From* src, To* dst, const std::int64_t* index, const float* weight,
                          std::int64_t taps, std::int64_t size);

struct ResizingKernels {
    std::int64_t lanes;
    void (*row)(const float* src, float* dst, const ResizedRow& r);
    void (*row_to_half)(const float* src, std::uint16_t* dst, const ResizedRow& r);
    // The neighbours themselves, of one tap, as they are; numbers of 4 and of 2 bytes. Blocks read nothing
    // behind src.
    void (*pick)(const std::uint32_t* src, std::uint32_t* dst, const ResizedRow& r);
    void (*pick_halves)(const std::uint16_t* src, std::uint16_t* dst, const ResizedRow& r);
    // dst[i]: the sum over t of src[index[t] * size + i] * weight[t].
    Weighted<float, float> weighted;
    Weighted<std::uint16_t, float> weighted_of_half;
    Weighted<float, std::uint16_t> weighted_to_half;
};

const ResizingKernels& resizing_kernels_base();
const ResizingKernels& resizing_kernels_avx2();
const ResizingKernels& resizing_kernels_avx512();
const ResizingKernels& active_resizing_kernels();

}  // namespace mge
