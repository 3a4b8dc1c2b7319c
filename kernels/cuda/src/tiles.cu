// Copies in which the axis that lies side by side in the source is not the one of the result: through tiles in shared
// memory, so that both are read and written in rows. SIZE: bytes of a unit; PACK: units moved at once, in words of SIZE *
// PACK bytes; blocks of PACK x PACK units are transposed in registers.
#include "units.cuh"
#if PACK == 1
typedef Unit Word;
#else
typedef unsigned Word;
#endif

struct Tiles {
    i64 tiles;
    unsigned rows, columns, row_tiles, column_tiles;  // blocks of PACK units; rows lie side by side in the source
    i64 column_from, row_to;                          // all distances are in words
    int axes;                                         // others
    unsigned size[MOST_AXES];
    i64 from[MOST_AXES], to[MOST_AXES], first_from, first_to;
};

COC_FN void transpose_block(Word (&w)[PACK]) {
#if PACK == 2
    const Word a = w[0], b = w[1];
    w[0] = (a & 0xffff) | b << 16;
    w[1] = a >> 16 | (b & 0xffff0000u);
#elif PACK == 4
    Word t[4];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const int s = 8 * p;
        t[p] = (w[0] >> s & 255) | (w[1] >> s & 255) << 8 | (w[2] >> s & 255) << 16 | (w[3] >> s & 255) << 24;
    }
#pragma unroll
    for (int p = 0; p < 4; p++) w[p] = t[p];
#endif
}

KERNEL_BOUNDS(move_tiles, 256, void* out, const void* x, Tiles t) {
    SHARED(Word, tile, PACK * 32 * 33);
    const unsigned tx = threadIdx.x, ty = threadIdx.y;
    for (i64 number = blockIdx.x; number < t.tiles; number += gridDim.x) {
        i64 left = number / t.row_tiles, from = t.first_from, to = t.first_to;
        const unsigned row0 = (unsigned)(number % t.row_tiles) * 32, column0 = (unsigned)(left % t.column_tiles) * 32;
        left /= t.column_tiles;
        for (int axis = t.axes - 1; axis >= 0; axis--) {
            const i64 at = left % t.size[axis];
            left /= t.size[axis];
            from += at * t.from[axis];
            to += at * t.to[axis];
        }
#pragma unroll
        for (int k = 0; k < 32; k += 8) {
            const unsigned row = row0 + tx, column = column0 + ty + k;
            if (row < t.rows && column < t.columns) {
                Word w[PACK];
#pragma unroll
                for (int p = 0; p < PACK; p++) w[p] = ((const Word*)x)[from + row + ((i64)column * PACK + p) * t.column_from];
                transpose_block(w);
#pragma unroll
                for (int p = 0; p < PACK; p++) tile[(p * 32 + ty + k) * 33 + tx] = w[p];
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 32; k += 8) {
            const unsigned row = row0 + ty + k, column = column0 + tx;
            if (row < t.rows && column < t.columns) {
#pragma unroll
                for (int p = 0; p < PACK; p++)
                    ((Word*)out)[to + column + ((i64)row * PACK + p) * t.row_to] = tile[(p * 32 + tx) * 33 + ty + k];
            }
        }
        __syncthreads();
    }
}
