// Sums of the elements up to each, along rows of TYPE. SUM: what they are added in.
#include "dividing.cuh"
#define CHUNK 1024

// One thread a line of `length` elements that stand `inner` apart; in the order of the elements.
KERNEL(scan_lines, TYPE* out, const TYPE* x, i64 length, i64 inner, int reverse, i64 n) {
    FOR_EACH(i, n) {
        i64 outer = i;
        const i64 column = split_off(outer, (unsigned)inner), start = outer * length * inner + column;
        SUM sum = 0;
        for (i64 k = 0; k < length; k++) {
            const i64 at = start + (reverse ? length - 1 - k : k) * inner;
            sum = k ? sum + (SUM)x[at] : (SUM)x[at];
            out[at] = (TYPE)sum;
        }
    }
}

// Sums within chunks of rows; totals[row][chunk] holds the chunk's.
KERNEL_BOUNDS(scan_chunks, 256, TYPE* out, SUM* totals, const TYPE* x, i64 length, int chunks, int reverse, i64 n) {
    SHARED(SUM, of_warps, 8);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (i64 block = blockIdx.x; block < n; block += gridDim.x) {
        i64 row = block;
        const i64 first = (i64)split_off(row, chunks) * CHUNK + 4 * threadIdx.x;
        row *= length;
        SUM sums[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const i64 at = first + k;
            const SUM v = at < length ? (SUM)x[row + (reverse ? length - 1 - at : at)] : (SUM)0;
            sums[k] = k ? sums[k - 1] + v : v;
        }
        SUM sum = sums[3];
#pragma unroll
        for (int gap = 1; gap < 32; gap *= 2) {
            const SUM before = __shfl_up_sync(~0u, sum, gap);
            if (lane >= gap) sum = before + sum;
        }
        SUM offset = __shfl_up_sync(~0u, sum, 1);
        if (lane == 0) offset = 0;
        if (lane == 31) of_warps[warp] = sum;
        __syncthreads();
        SUM base = 0;
        for (int w = 0; w < warp; w++) base = base + of_warps[w];
        if (warp) offset = base + offset;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const i64 at = first + k;
            if (at < length) out[row + (reverse ? length - 1 - at : at)] = (TYPE)(offset + sums[k]);
        }
        if (totals && threadIdx.x == 255) totals[block] = offset + sums[3];
        __syncthreads();
    }
}

// Adds what stands before each chunk: totals[row][chunk] sums the chunks up to it.
KERNEL(add_totals, TYPE* out, const SUM* totals, i64 length, int chunks, int reverse, i64 n) {
    FOR_EACH(i, n) {
        i64 row = i;
        const i64 at = split_off(row, (unsigned)length), chunk = (reverse ? length - 1 - at : at) / CHUNK;
        if (chunk) out[i] = (TYPE)(totals[row * chunks + chunk - 1] + (SUM)out[i]);
    }
}
