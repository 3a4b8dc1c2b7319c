// Softmax and its logarithm of float32 whose sums have NumPy's order, and so the bits of the reference.
#include "functions.cuh"
#include "pairwise.cuh"
#include "rows.cuh"

COC_FN float lowest() { return __uint_as_float(0xff800000u); }
struct Power {
    const float* x;
    float most;
    COC_FN float operator()(int i) const { return power_of_distance(x[i] - most); }
};
COC_FN float result(float distance, float end, int log) { return log ? distance - end : power_of_distance(distance) / end; }
COC_FN float most_of(const float* x, i64 n, int first, int step) {
    float most = lowest();
    for (i64 i = first; i < n; i += step) most = Larger()(most, x[i]);
    return most;
}

// Rows of up to 128 numbers: eight lanes a row.
KERNEL_BOUNDS(cuda_softmax_short_rows, 256, const float* x, float* y, i64 rows, int n, int log) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    const int lane = threadIdx.x & 7, size = row < rows ? n : 0;
    const float* from = x + (row < rows ? row : 0) * n;
    const float most = over_lanes(most_of(from, size, lane, 8), 8, Larger());
    const float sum = leaf_sum<float>({0, size}, Power{from, most}), end = log ? log_of(sum) : sum;
    for (int i = lane; i < size; i += 8) y[row * n + i] = result(from[i] - most, end, log);
}
// A block a row.
KERNEL_BOUNDS(cuda_softmax_rows, 256, const float* x, float* y, int n, int log) {
    const float* from = x + (i64)blockIdx.x * n;
    const float most = over_block(most_of(from, n, threadIdx.x, blockDim.x), lowest(), Larger());
    const float sum = pairwise<float>(n, Power{from, most}), end = log ? log_of(sum) : sum;
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[(i64)blockIdx.x * n + i] = result(from[i] - most, end, log);
}
// The middle axis of [outer, n, inner]: a thread a column, one number after the other.
KERNEL_BOUNDS(cuda_softmax_in_turn, 256, const float* x, float* y, unsigned columns, int n, unsigned inner, int log) {
    const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const unsigned outer = column / inner;
    const i64 at = (i64)outer * n * inner + (column - outer * inner);
    float most = lowest(), sum = 0.f;
    for (int i = 0; i < n; i++) most = Larger()(most, x[at + (i64)i * inner]);
    for (int i = 0; i < n; i++) sum += power_of_distance(x[at + (i64)i * inner] - most);
    const float end = log ? log_of(sum) : sum;
    for (int i = 0; i < n; i++) y[at + (i64)i * inner] = result(x[at + (i64)i * inner] - most, end, log);
}
