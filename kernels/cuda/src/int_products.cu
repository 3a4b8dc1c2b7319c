// Products of two computed matrices of integers. AT, BT, OUT: types of elements; BYTES: 1 where both operands have 8 bits.
// 8-bit numbers are multiplied as signed ones, zero points stand behind the sums; others are products of 64 bits.
#include "integer.cuh"
#ifndef BARRIER
#define BARRIER() __syncthreads()
#endif
#define STEP 8
#define WORDS (BYTES ? 4 : 1)
#if BYTES
#define ACC int
#else
#define ACC i64
#endif

// A matrix: steps, in elements, from one row (of the operand that is not the depth) to the next, and along the depth.
struct Side {
    i64 row, deep;
    int rows, depth, zero;
};

// Numbers of the depth from k on as a word: signed bytes, zeros beyond the depth; or one number less its zero point.
template <class T>
COC_FN unsigned fetched(const T* from, const Side& side, int row, int k) {
    if (row >= side.rows || k >= side.depth) return 0;
    const T* at = from + row * side.row + k * side.deep;
    if constexpr (!BYTES) return (unsigned)((int)*at - side.zero);
    const unsigned turn = (T)-1 > (T)0 ? 0x80u : 0u;
    unsigned word = 0;
    if (side.deep == 1 && (unsigned long long)at % 4 == 0 && k + 4 <= side.depth) return *(const unsigned*)at ^ turn * 0x01010101u;
    for (int e = 0; e < 4 && k + e < side.depth; e++) word |= ((unsigned)(u8)at[e * side.deep] ^ turn) << 8 * e;
    return word;
}

// 64 x 64 results a block, 4 x 4 a thread. Grid: tiles along x, rows first, since y ends at 65535; z: stacks, whose matrices
// begin at a_places and b_places.
KERNEL_BOUNDS(cuda_qmatmul, 256, const AT* a, const BT* b, OUT* y, const i64* a_places, const i64* b_places, int stacks, int rows,
              int columns, int depth, i64 a_row, i64 a_deep, i64 b_row, i64 b_deep, int z_a, int z_b, float m, float lo, float hi,
              int z_y) {
    SHARED(unsigned, as, STEP * 65);
    SHARED(unsigned, bs, STEP * 65);
    const Side left = {a_row, a_deep, rows, depth, z_a}, right = {b_row, b_deep, columns, depth, z_b};
    const unsigned tiles = (rows + 63) / 64;
    const int top = blockIdx.x % tiles * 64, begin = blockIdx.x / tiles * 64;
    const int across = threadIdx.x % 16, down = threadIdx.x / 16, fetches = threadIdx.x % STEP;
    for (int stack = blockIdx.z; stack < stacks; stack += gridDim.z) {
        ACC acc[4][4] = {};
        int of_a[4] = {}, of_b[4] = {};
        for (int k0 = 0; k0 < depth; k0 += STEP * WORDS) {
            for (int i = threadIdx.x / STEP; i < 64; i += 256 / STEP) {
                const int k = k0 + fetches * WORDS;
                as[fetches * 65 + i] = fetched(a + a_places[stack], left, top + i, k);
                bs[fetches * 65 + i] = fetched(b + b_places[stack], right, begin + i, k);
            }
            BARRIER();
#pragma unroll
            for (int i = 0; i < STEP; i++) {
                unsigned mine[4], given[4];
#pragma unroll
                for (int e = 0; e < 4; e++) mine[e] = as[i * 65 + down + e * 16], given[e] = bs[i * 65 + across + e * 16];
                if constexpr (BYTES) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        of_a[e] = dot4<s8>(mine[e], 0x01010101u, of_a[e]);
                        of_b[e] = dot4<s8>(given[e], 0x01010101u, of_b[e]);
                    }
                }
#pragma unroll
                for (int r = 0; r < 4; r++)
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        if constexpr (BYTES)
                            acc[r][c] = dot4<s8>(mine[r], given[c], acc[r][c]);
                        else
                            acc[r][c] += (i64)(int)mine[r] * (int)given[c];
                    }
            }
            BARRIER();
        }
        const int zero_a = z_a - ((AT)-1 > (AT)0 ? 128 : 0), zero_b = z_b - ((BT)-1 > (BT)0 ? 128 : 0);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int row = top + down + r * 16, column = begin + across + c * 16;
                if (row >= rows || column >= columns) continue;
                ACC sum = acc[r][c];
                if constexpr (BYTES) sum += depth * zero_a * zero_b - zero_a * of_b[c] - zero_b * of_a[r];
                const float t = __fmul_rn((float)sum, m);
                y[((i64)stack * rows + row) * columns + column] = Output{0.f, lo, hi, 0, z_y, 0}.of<OUT>(t);
            }
    }
}
