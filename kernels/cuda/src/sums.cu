// Sums of floats in NumPy's order. Macros: SRC, ACC and DST, the types of elements, sums and results. `divisor` is -1, or
// what a mean divides by.
#include "pairwise.cuh"

COC_FN void store(DST* y, i64 at, ACC sum, i64 divisor) {
    y[at] = narrow<DST>(divisor < 0 ? sum : ((ACC)0 + sum) / (ACC)divisor);
}
struct From {
    const SRC* x;
    COC_FN ACC operator()(int i) const { return (ACC)widen(x[i]); }
};

// Rows of up to 128 numbers: eight lanes a row.
KERNEL_BOUNDS(cuda_sum_short_rows, 256, const SRC* x, DST* y, i64 rows, int n, i64 divisor) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    const ACC sum = leaf_sum<ACC>({0, row < rows ? n : 0}, From{x + (row < rows ? row : 0) * n});
    if (row < rows && (threadIdx.x & 7) == 0) store(y, row, sum, divisor);
}
// A block for each of the 1 << depth parts of a row: [rows, parts].
KERNEL_BOUNDS(cuda_sum_rows, 256, const SRC* x, DST* y, int n, int depth, i64 divisor) {
    const unsigned row = blockIdx.x >> depth;
    const Node node = node_of(n, depth, blockIdx.x - (row << depth));
    store(y, blockIdx.x, pairwise<ACC>(node.size, From{x + (i64)row * n + node.start}), divisor);
}
// Sums of neighbours, again and again: of each block's 2 * blockDim.x numbers.
KERNEL_BOUNDS(cuda_sum_parts, 512, const ACC* x, DST* y, i64 divisor) {
    SHARED(ACC, parts, 512);
    const i64 at = (i64)blockIdx.x * 2 * blockDim.x + 2 * threadIdx.x;
    ACC sum = x[at] + x[at + 1];
    for (int step = 1; step < blockDim.x; step *= 2) {
        parts[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x % (2 * step) == 0) sum = sum + (ACC)parts[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) store(y, blockIdx.x, sum, divisor);
}
// [K0, R1, K1, R2, K2] to [K0, K1, K2], one after the other in the order of memory: a thread a result.
KERNEL_BOUNDS(cuda_sum_in_turn, 256, const SRC* x, DST* y, unsigned results, unsigned k1, unsigned k2, int r1, int r2, i64 divisor) {
    const unsigned result = blockIdx.x * blockDim.x + threadIdx.x;
    if (result >= results) return;
    const unsigned rest = result / k2, c = result - rest * k2, a = rest / k1, b = rest - a * k1;
    const i64 near = k2, far = near * r2 * k1;
    const SRC* from = x + a * far * r1 + b * near * r2 + c;
    ACC sum = (ACC)widen(from[0]);
    for (int i = 0; i < r1; i++) {
#pragma unroll 8
        for (int j = i == 0; j < r2; j++) sum += (ACC)widen(from[i * far + j * near]);
    }
    store(y, result, sum, divisor);
}
