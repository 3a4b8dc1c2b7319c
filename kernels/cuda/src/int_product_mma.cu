// Products of two computed matrices of 8-bit integers by tensor cores (sm_80 on): y [rows, columns] of a [rows, depth] and
// b [columns, depth], whose rows begin `pitch` numbers, a multiple of 16, after each other; beyond the depth they hold zeros.
// AT, BT: u8 or s8; OUT: type of results, u8 for both kinds of 8 bits. SUMS_A and SUMS_B: 1 where the zero point of b, or of
// a, is not 0. 64 x 64 results a block of four warps, 64 numbers of depth a step, STAGES buffers. Grid: tiles along x, rows
// first, since y ends at 65535; stacks along z.
#include "integer.cuh"
#ifndef BARRIER
#define BARRIER() __syncthreads()
#endif
#define STAGES 4
#define STAGE (128 * 16)  // words of a buffer: 64 rows of a, then 64 of b

// Where 16 bytes of a row of 64 lie, in words: eight rows at one place of the depth are in different banks.
COC_FN int placed(int row, int chunk) { return row * 16 + (chunk ^ (row / 2 % 4)) * 4; }
// The column that stands in place p: each thread has eight neighbouring columns of a row then.
COC_FN int spread(int p) { return p / 32 * 32 + p % 8 / 2 * 8 + p % 32 / 8 * 2 + p % 2; }

struct alignas(8 * sizeof(OUT)) Eight {
    OUT v[8];
};

template <class S>
COC_FN void copy_step(const u8* a, const u8* b, S& tile, int buffer, int k, int top, int left, int rows, int columns, i64 pitch) {
    const int chunk = threadIdx.x % 4, deep = k + chunk * 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int own = threadIdx.x / 4 + i % 2 * 32, at = buffer * STAGE + i / 2 * 64 * 16 + placed(own, chunk);
        const int row = i < 2 ? top + own : left + spread(own);
        if (row < (i < 2 ? rows : columns) && deep < pitch)
            cp_async<16>(tile, at, (i < 2 ? a : b) + row * pitch + deep);
        else
            wide_store(tile, at, make_uint4(0, 0, 0, 0));
    }
}

// Of a thread, as mma_16x8x32 has them: products, and the sums of rows of a and of columns of b.
struct Sums {
    int acc[2][4][4], of_a[2][4], of_b[4][4];
};

// 64 numbers of depth, of the buffer that begins at word `begin`, by a warp.
template <class S>
COC_FN void multiply(Sums& sums, const S& tile, int begin, int warp_m, int warp_n) {
    const unsigned ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u}, two[2] = {0x01010101u, 0x01010101u};
    const int lane = threadIdx.x % 32, row_a = warp_m * 32 + lane % 16, chunk_a = lane / 16;
    const int row_b = warp_n * 32 + lane / 16 * 8 + lane % 8, chunk_b = lane / 8 % 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned left[2][4], right[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            ldmatrix_x4(left[i], tile, begin + placed(row_a + i * 16, half * 2 + chunk_a));
            ldmatrix_x4(right[i], tile, begin + 64 * 16 + placed(row_b + i * 16, half * 2 + chunk_b));
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const unsigned both[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
            if constexpr (SUMS_B) mma_16x8x32<AT, BT>(sums.of_b[j], ones, both);
#pragma unroll
            for (int i = 0; i < 2; i++) mma_16x8x32<AT, BT>(sums.acc[i][j], left[i], both);
        }
        if constexpr (SUMS_A) {
#pragma unroll
            for (int i = 0; i < 2; i++) mma_16x8x32<AT, BT>(sums.of_a[i], left[i], two);
        }
    }
}

struct Finish {
    Output out;
    float m;
    int depth, z_a, z_b;
    COC_FN OUT of(const Sums& sums, int i, int e) const {  // of row i * 8 and column e of a thread
        int sum = sums.acc[i / 2][e / 2][i % 2 * 2 + e % 2];
        if constexpr (SUMS_A || SUMS_B)
            sum += depth * z_a * z_b - z_a * sums.of_b[e / 2][e % 2] - z_b * sums.of_a[i / 2][i % 2 * 2];
        return out.of<OUT>(__fmul_rn((float)sum, m));
    }
};

// Eight columns of every eighth row from `top` on.
COC_FN void put_sums(const Finish& finish, const Sums& sums, OUT* y, int top, int column, int rows, int columns) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const i64 at = (i64)(top + i * 8) * columns + column;
        Eight results;
#pragma unroll
        for (int e = 0; e < 8; e++) results.v[e] = finish.of(sums, i, e);
        if (top + i * 8 >= rows) continue;
        if (columns % 8 == 0) {
            if (column < columns) *(Eight*)(y + at) = results;
        } else {
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (column + e < columns) y[at + e] = results.v[e];
        }
    }
}

KERNEL_BLOCKS(cuda_qmatmul_mma, 128, 3, const u8* a, const u8* b, OUT* y, const i64* a_places, const i64* b_places, int stacks,
              int rows, int columns, int depth, i64 pitch, int z_a, int z_b, float m, float lo, float hi, int z_y) {
    SHARED(unsigned, tile, STAGES* STAGE);
    const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 64, warp_n = threadIdx.x / 32 % 2, steps = (depth + 63) / 64;
    const unsigned down = (rows + 63) / 64;
    const int top = blockIdx.x % down * 64, left = blockIdx.x / down * 64;
    const int row = top + warp_m * 32 + lane / 4, column = left + warp_n * 32 + lane % 4 * 8;
    const Finish finish = {Output{0.f, lo, hi, 0, z_y, 0}, m, depth, z_a, z_b};
    for (int stack = blockIdx.z; stack < stacks; stack += gridDim.z) {
        const u8 *own_a = a + a_places[stack], *own_b = b + b_places[stack];
        Sums sums = {};
#pragma unroll 1
        for (int stage = 0; stage < STAGES - 1; stage++) {
            if (stage < steps) copy_step(own_a, own_b, tile, stage, stage * 64, top, left, rows, columns, pitch);
            cp_async_commit();
        }
        int reading = 0, writing = STAGES - 1;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            cp_async_wait<STAGES - 2>();
            BARRIER();
            const int next = step + STAGES - 1;
            if (next < steps) copy_step(own_a, own_b, tile, writing, next * 64, top, left, rows, columns, pitch);
            cp_async_commit();
            writing = writing + 1 == STAGES ? 0 : writing + 1;
            multiply(sums, tile, reading * STAGE, warp_m, warp_n);
            reading = reading + 1 == STAGES ? 0 : reading + 1;
        }
        cp_async_wait<0>();
        BARRIER();  // the next stack writes the buffers
        put_sums(finish, sums, y + (i64)stack * rows * columns, row, column, rows, columns);
    }
}
