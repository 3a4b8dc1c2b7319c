// Integer ops along axes: means, softmax, normalization. XT, YT: types of elements of x and y.
#include "integer.cuh"
#ifndef BARRIER
#define BARRIER() __syncthreads()
#endif

// The sum of v over the threads of a row: lanes is 1, 32 or the 256 of the block. All threads of the block call it.
COC_FN i64 row_sum(i64 v, int lanes) {
    if (lanes == 1) return v;
    for (int by = 16; by; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
    if (lanes == 32) return v;
    SHARED(i64, parts, 8);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    BARRIER();
    i64 sum = 0;
    for (int i = 0; i < 8; i++) sum += (i64)parts[i];
    BARRIER();  // the next call writes parts
    return sum;
}
COC_FN int row_max(int v, int lanes) {
    if (lanes == 1) return v;
    for (int by = 16; by; by /= 2) {
        const int other = __shfl_xor_sync(0xffffffffu, v, by);
        v = other > v ? other : v;
    }
    return v;
}

// Where element i of some axes lies: walk holds for each, the innermost first, its length and its step.
COC_FN i64 place(i64 i, const i64* walk, int axes) {
    if (axes == 1) return i * walk[1];
    INDEX rest = (INDEX)i, at = 0;
#pragma unroll 1
    for (int k = 0; k < axes; k++) {
        INDEX own = rest;
        if (k + 1 < axes) {
            rest /= (INDEX)walk[2 * k];
            own -= rest * (INDEX)walk[2 * k];
        }
        at += own * (INDEX)walk[2 * k + 1];
    }
    return at;
}

// Sums of `length` elements times m. walk: the axes that are kept, then those that are summed.
KERNEL_BOUNDS(cuda_mean, 256, const XT* x, YT* y, const i64* walk, int kept, int summed, i64 length, i64 results, int lanes,
              float m, float lo, float hi, int z_x, int z_y) {
    const int per = 256 / lanes, lane = threadIdx.x % lanes;
    for (i64 first = (i64)blockIdx.x * per; first < results; first += (i64)gridDim.x * per) {
        const i64 at = first + threadIdx.x / lanes;
        i64 sum = 0;
        if (at < results) {
            const XT* from = x + place(at, walk, kept);
            const i64* along = walk + 2 * kept;
            if (summed == 1) {
                const i64 step = along[1];
                for (i64 i = lane; i < length; i += lanes) sum += (int)from[i * step];
            } else {
#pragma unroll 1
                for (i64 i = lane; i < length; i += lanes) sum += (int)from[place(i, along, summed)];
            }
        }
        sum = row_sum(sum, lanes);
        if (lane == 0 && at < results) y[at] = (YT)rounded(__fmul_rn((float)(sum - length * z_x), m), lo, hi, z_y);
    }
}

// Along an axis of [outer, length, inner]; table[d]: exp of d steps below the largest. lanes: 32 where inner is 1, else 1.
KERNEL_BOUNDS(cuda_softmax, 256, const XT* x, const int* table, YT* y, i64 rows, i64 length, i64 inner, int lanes, float one,
              float lo, float hi, int z_y) {
    const int per = 256 / lanes, lane = threadIdx.x % lanes;
    for (i64 first = (i64)blockIdx.x * per; first < rows; first += (i64)gridDim.x * per) {
        const i64 row = first + threadIdx.x / lanes, mine = row < rows ? length : 0;
        const i64 begin = inner == 1 ? row * length : (i64)((INDEX)row / (INDEX)inner) * length * inner + (INDEX)row % (INDEX)inner;
        int largest = -(1 << 30);
        for (i64 i = lane; i < mine; i += lanes) {
            const int value = (int)x[begin + i * inner];
            largest = value > largest ? value : largest;
        }
        largest = row_max(largest, lanes);
        i64 sum = 0;
        for (i64 i = lane; i < mine; i += lanes) sum += __ldg(table + (largest - (int)x[begin + i * inner]));
        sum = row_sum(sum, lanes);
        const float r = __fdiv_rn(one, (float)sum);
        for (i64 i = lane; i < mine; i += lanes) {
            const float e = (float)__ldg(table + (largest - (int)x[begin + i * inner]));
            y[begin + i * inner] = (YT)rounded(__fmul_rn(e, r), lo, hi, z_y);
        }
    }
}

// Rows of n elements by their deviation; G and B: one for each place of a row. lanes: 32 or 256 threads a row.
KERNEL_BOUNDS(cuda_norm, 256, const XT* x, const float* G, const float* B, YT* y, i64 rows, i64 n, int lanes, int centred,
              double E, float lo, float hi, int z_x, int z_y) {
    const int per = 256 / lanes, lane = threadIdx.x % lanes;
    for (i64 first = (i64)blockIdx.x * per; first < rows; first += (i64)gridDim.x * per) {
        const i64 row = first + threadIdx.x / lanes, mine = row < rows ? n : 0;
        i64 sum = 0, squares = 0;
        for (i64 i = lane; i < mine; i += lanes) {
            const i64 c = (int)x[row * n + i] - z_x;
            sum += c, squares += c * c;
        }
        sum = centred ? row_sum(sum, lanes) : 0;
        squares = row_sum(squares, lanes);
        const double variance = (double)(n * squares - sum * sum) / (double)(n * n);
        const float k = (float)(1.0 / sqrt(variance + E) / (double)n);
        for (i64 i = lane; i < mine; i += lanes) {
            const float t = __fmul_rn((float)(n * ((int)x[row * n + i] - z_x) - sum), k);
            y[row * n + i] = (YT)rounded(SCALE_AND_SHIFT(t, G[i], B[i]), lo, hi, z_y);
        }
    }
}
