// Counting values for statistics of tensors: extrema by channel, and histograms with bins of a power of two.
#pragma once
#include <cstdint>

namespace mge {

struct CountingKernels {
    // Extrema of every channel of x, [outer, channels, inner], and its sum unless `sums` is null. False if a
    // value is NaN or infinite.
    bool (*extrema)(const float* x, std::int64_t outer, std::int64_t channels, std::int64_t inner, float* lo,
                    float* hi, double* sums);
    // counts[floor(x * factor) - first] += 1 for every value. False if a value lies outside; nothing is
    // promised about counts then.
    bool (*count)(const float* x, std::int64_t size, float factor, std::int32_t first, std::int64_t bins,
                  std::int64_t* counts);
};

const CountingKernels& counting_kernels_base();
const CountingKernels& counting_kernels_avx2();
const CountingKernels& counting_kernels_avx512();

}  // namespace mge
