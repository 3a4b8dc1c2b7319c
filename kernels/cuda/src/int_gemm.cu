// Integer convolution by tensor cores (sm_80 on), channels last, as a product [pixels, depth] x [depth, channels].
// XT: u8 or s8; OUT: type of results, u8 for both kinds of 8 bits; RT: that of residuals, likewise. GRAIN: 16, 8 or 4, which
// divides the channels of a tap. EIGHTS: 1 where eight divides the channels of y. POINT: 1 for windows of one pixel without
// stride or padding, where pixels of x are those of y. A block computes BLOCK_M pixels x BLOCK_N channels in warps of WARP_M x 32, 64 numbers of
// depth a step, with STAGES buffers: while one is read, copies into the others are on their way.
// Weights [groups, rows, depth] are spread by cuda_pack, so that each thread has eight neighbouring channels of a pixel.
#include "integer.cuh"
#ifndef BARRIER
#define BARRIER() __syncthreads()
#endif
#define WARPS_N (BLOCK_N / 32)
#define THREADS (BLOCK_M / WARP_M * WARPS_N * 32)
#define ROWS_X (BLOCK_M * 4 / THREADS)              // rows of x that a thread copies 16 bytes of
#define ROWS_W ((BLOCK_N * 4 + THREADS - 1) / THREADS)
#define STAGE ((BLOCK_M + BLOCK_N) * 16)            // words of a buffer

// Where 16 bytes of a row of 64 lie, in words: eight rows at one place of k are in different banks.
COC_FN int placed(int row, int chunk) { return row * 16 + (chunk ^ (row / 2 % 4)) * 4; }

struct Layer {
    const XT* x;
    const s8* w;
    const int* b;
    const float *M, *B;
    const RT* residual;
    OUT* y;
    int groups, channels, of_group, rows, depth;  // channels: of x in a group, of_group: of y; rows, depth: of w
    unsigned z;                                   // four times the zero point of x
    unsigned pixels;
};

// What a thread copies: 16 bytes of some rows of x and w, at one place of each step of the depth.
struct Copies {
    const XT* image[ROWS_X];
    int top[ROWS_X], left[ROWS_X];
    const s8* w;
    int row, chunk, r, s, c;  // row, place in it; tap and channel of the next step

    COC_FN void begin(const Layer& layer, const Window& v, unsigned first, int first_row) {
        row = threadIdx.x / 4, chunk = threadIdx.x % 4, r = 0, s = 0, c = 0;
        w = layer.w + ((i64)blockIdx.z * layer.rows + first_row + row) * layer.depth + chunk * 16;
        forward(layer, v, chunk * 16);
#pragma unroll
        for (int i = 0; i < ROWS_X; i++) {
            const unsigned p = first + row + i * (THREADS / 4);
            const bool real = p < layer.pixels;
            if constexpr (POINT) {
                top[i] = real, left[i] = 0;
                image[i] = layer.x + (i64)(real ? p : 0) * v.pitch + blockIdx.z * layer.channels;
            } else {
                const unsigned line = p / (unsigned)v.ow, picture = line / (unsigned)v.oh;
                top[i] = real ? (int)(line - picture * v.oh) * v.sy - v.py : -(1 << 30);  // beyond the pixels nothing is inside
                left[i] = (int)(p - line * v.ow) * v.sx - v.px;
                image[i] = layer.x + (i64)(real ? picture : 0) * v.h * v.w * v.pitch + blockIdx.z * layer.channels;
            }
        }
    }
    COC_FN bool inside(const Layer& layer, const Window& v, int i, int iy, int ix, int tap, int channel) const {
        if constexpr (POINT) return top[i] && channel < layer.channels;
        return tap < v.kh && (unsigned)iy < (unsigned)v.h && (unsigned)ix < (unsigned)v.w;
    }
    COC_FN void forward(const Layer& layer, const Window& v, int by) {
        c += by;
        if constexpr (POINT) return;
        for (; c >= layer.channels; c -= layer.channels)
            if (++s == v.kw) s = 0, r++;
    }
    template <class S>
    COC_FN void step(const Layer& layer, const Window& v, S& tile, int buffer, int first_row) {
        int piece_r = r, piece_s = s, piece_c = c;
#pragma unroll
        for (int piece = 0; piece < 16 / GRAIN; piece++) {
            const int dy = piece_r * v.dy, dx = piece_s * v.dx;
#pragma unroll
            for (int i = 0; i < ROWS_X; i++) {
                const int at = buffer * STAGE + placed(row + i * (THREADS / 4), chunk) + piece * (GRAIN / 4);
                const int iy = top[i] + dy, ix = left[i] + dx;
                if (inside(layer, v, i, iy, ix, piece_r, piece_c)) {
                    cp_async<GRAIN>(tile, at, image[i] + (POINT ? 0 : (iy * v.w + ix) * v.pitch) + piece_c);
                } else {
#pragma unroll
                    for (int word = 0; word < GRAIN / 4; word++) tile[at + word] = layer.z;
                }
            }
            if (16 / GRAIN > 1) {
                piece_c += GRAIN;
                if (!POINT && piece_c >= layer.channels) {
                    piece_c = 0;
                    if (++piece_s == v.kw) piece_s = 0, piece_r++;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS_W; i++) {
            const int o = row + i * (THREADS / 4), channel = first_row + o, at = buffer * STAGE + BLOCK_M * 16 + placed(o, chunk);
            if (BLOCK_N * 4 % THREADS != 0 && o >= BLOCK_N) continue;
            if (channel < layer.rows)
                cp_async<16>(tile, at, w + i * (THREADS / 4) * layer.depth);
            else
                wide_store(tile, at, make_uint4(0, 0, 0, 0));
        }
        w += 64;
        forward(layer, v, 64);
    }
};

// Eight neighbouring channels of one pixel.
struct alignas(8 * sizeof(OUT)) Eight {
    OUT v[8];
};
struct alignas(8 * sizeof(RT)) EightResiduals {
    RT v[8];
};

COC_FN void finish_eight(const Layer& layer, const Output& out, const float (&t)[8], int pixel, int channel) {
    const i64 at = ((i64)pixel * layer.groups + blockIdx.z) * layer.of_group + channel;
    if constexpr (EIGHTS) {
        Eight results;
        EightResiduals r;
        if (layer.residual) r = *(const EightResiduals*)(layer.residual + at);
#pragma unroll
        for (int e = 0; e < 8; e++) results.v[e] = out.of<OUT>(layer.residual ? out.with(t[e], r.v[e]) : t[e]);
        *(Eight*)(layer.y + at) = results;
    } else {
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (channel + e < layer.of_group)
                layer.y[at + e] = out.of<OUT>(layer.residual ? out.with(t[e], layer.residual[at + e]) : t[e]);
    }
}

KERNEL_BLOCKS(cuda_conv_mma, THREADS, 512 / THREADS, const XT* x, const s8* weights, const int* b, const float* M, const float* B,
              const RT* residual, OUT* y, int groups, int channels, int of_group, int rows, int depth, int z_x, int pixels,
              int tiles_n, WINDOW_PARAMETERS, OUTPUT_PARAMETERS) {
    SHARED_DYNAMIC(unsigned, tile);
    const Layer layer = {x, weights, b, M, B, residual, y, groups, channels, of_group, rows, depth, (z_x & 255) * 0x01010101u, (unsigned)pixels};
    const Window v = WINDOW;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    const int first = (int)(blockIdx.x / tiles_n) * BLOCK_M;
    const int first_row = (int)(blockIdx.x % tiles_n) * BLOCK_N, steps = depth / 64;
    int acc[WARP_M / 16][4][4] = {};
    Copies copies;
    copies.begin(layer, v, first, first_row);
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps) copies.step(layer, v, tile, stage, first_row);
        cp_async_commit();
    }
    // which row of 16 bytes a lane names to ldmatrix: of x, rows 0-7, 8-15, then 16 bytes on; of w, 16 bytes on, then rows 8-15
    const int row_x = warp_m * WARP_M + lane % 16, chunk_x = lane / 16;
    const int row_w = warp_n * 32 + lane / 16 * 8 + lane % 8, chunk_w = lane / 8 % 2;
    int reading = 0, writing = STAGES - 1;
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        BARRIER();  // the copies of all threads are there, and nobody reads what was read a step ago
        if (step + STAGES - 1 < steps) copies.step(layer, v, tile, writing, first_row);
        cp_async_commit();
        writing = writing + 1 == STAGES ? 0 : writing + 1;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned left[WARP_M / 16][4], right[2][4];
#pragma unroll
            for (int i = 0; i < WARP_M / 16; i++)
                ldmatrix_x4(left[i], tile, reading * STAGE + placed(row_x + i * 16, half * 2 + chunk_x));
#pragma unroll
            for (int j = 0; j < 2; j++)
                ldmatrix_x4(right[j], tile, reading * STAGE + BLOCK_M * 16 + placed(row_w + j * 16, half * 2 + chunk_w));
#pragma unroll
            for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const unsigned both[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
                    mma_16x8x32<XT>(acc[i][j], left[i], both);
                }
        }
        reading = reading + 1 == STAGES ? 0 : reading + 1;
    }
    const int channel = first_row + warp_n * 32 + lane % 4 * 8;
    if (channel >= of_group) return;
    const Output out = OUTPUT;
    const i64 place = (i64)blockIdx.z * rows + channel;
    int bs[8];
    float Ms[8], Bs[8];
#pragma unroll
    for (int e = 0; e < 8; e++) bs[e] = b[place + e], Ms[e] = M[place + e], Bs[e] = B[place + e];
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
        for (int below = 0; below < 2; below++) {
            const int pixel = first + warp_m * WARP_M + i * 16 + below * 8 + lane / 4;
            float t[8];
#pragma unroll
            for (int e = 0; e < 8; e++) t[e] = scaled(acc[i][e / 2][below * 2 + e % 2], bs[e], Ms[e], Bs[e]);
            if (pixel < pixels) finish_eight(layer, out, t, pixel, channel);
        }
}
