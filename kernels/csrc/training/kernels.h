// Kernels of training: batch statistics, and gradients of memory-bound layers.
// Channels are the last axis; one table per instruction set, all with the same results.
#pragma once
#include <cstdint>

#include "pooling/kernels.h"

namespace mge {

struct RoundedSums {
    bool has_residual, is_signed;
    float zero, ratio, lo, hi;
    std::int32_t offset;
};

struct RoundedSlope {
    float lo, hi, below, above;
    bool rounding;
};

struct TrainingKernels {
    // x, y: [rows, channels]; mean and (biased) var of every channel are results.
    void (*batch_norm)(const float* x, const float* scale, const float* bias, float eps, std::int64_t rows,
                       std::int64_t channels, float* y, float* mean, float* var);
    // dx = scale r (ct - sum(ct) / n - h sum(ct h) / n) with r = 1 / sqrt(var + eps) and h = (x - mean) r;
    // dscale = sum(ct h); dbias = sum(ct).
    void (*batch_norm_backward)(const float* x, const float* ct, const float* scale, const float* mean,
                                const float* var, float eps, std::int64_t rows, std::int64_t channels,
                                float* dx, float* dscale, float* dbias);
    // ct where y > 0, else 0.
    void (*relu_backward)(const float* ct, const float* y, float* dx, std::int64_t count);
    // A window's gradient goes to its first largest element; NaN counts as the largest, as in the forward
    // pass.
    void (*max_pool_backward)(const float* ct, const float* x, float* dx, const PoolShape& s);
    // total = t + (r - zero) * ratio (t itself without r); q = rint(clamp(total)) + offset modulo 256; ends
    // are the smallest and largest total. r holds signed bytes or unsigned ones.
    void (*round_sums)(const float* t, const std::uint8_t* r, const RoundedSums& s, std::int64_t count,
                       float* total, std::uint8_t* q, float* ends);
    // dx = ct inside of the bounds, else 0; sums[c] = sum of dx; the result is the sum of ct times below,
    // above, or, inside, rint(t) - t with `rounding`.
    double (*round_sums_backward)(const float* ct, const float* t, const RoundedSlope& s, std::int64_t rows,
                                  std::int64_t channels, float* dx, float* sums);
};

const TrainingKernels& training_kernels_base();
const TrainingKernels& training_kernels_avx2();
const TrainingKernels& training_kernels_avx512();

}  // namespace mge
