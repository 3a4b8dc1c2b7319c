// Integer convolution by tensor cores (sm_80 on), channels last, as a product [pixels, depth] x [depth, channels].
// XT: u8 or s8; OUT: type of results, u8 for both kinds of 8 bits; RT: that of residuals, likewise; RESIDUAL: 1 where there
// are some. GRAIN: 16, 8 or 4, which
// divides the channels of a tap. EIGHTS: 1 where eight divides the channels of y. POINT: 1 for windows of one pixel without
// stride or padding, where pixels of x are those of y. A block computes BLOCK_M pixels x BLOCK_N channels in warps of WARP_M x WARP_N, 64 numbers of
// depth a step, with STAGES buffers: while one is read, copies into the others are on their way. BLOCKS run
// at once on a multiprocessor.
// Weights [groups, rows, depth] are spread by cuda_pack, so that each thread has eight neighbouring channels of a pixel.
#include "integer.cuh"
#ifndef BARRIER
#define BARRIER() __syncthreads()
#endif
#define WARPS_N (BLOCK_N / WARP_N)
// residuals are read before products where registers have room for them: two words of eight bytes a pixel
#define EARLY (RESIDUAL && POINT && ACROSS == 1 && sizeof(RT) == 1)
#define ACROSS (WARP_N / 32)                        // times 32 channels of a warp
#define THREADS (BLOCK_M / WARP_M * WARPS_N * 32)
#define ROWS_X (BLOCK_M * 4 / THREADS)              // rows of x that a thread copies 16 bytes of
#define ROWS_W ((BLOCK_N * 4 + THREADS - 1) / THREADS)
#define STAGE ((BLOCK_M + BLOCK_N) * 16)            // words of a buffer

// Where 16 bytes of a row of 64 lie, in words: eight rows at one place of k are in different banks.
COC_FN int placed(int row, int chunk) { return row * 16 + (chunk ^ (row / 2 % 4)) * 4; }

struct Layer {
    const XT* x;
    const s8* w;
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
struct alignas(8 * sizeof(RT)) EightResiduals {  // as words, which take fewer registers
    unsigned words[2 * sizeof(RT)];
};

// The last steps of a layer, with few operations: they are most of the time of a layer of few channels.
struct Finish {
    float ratio, lo, hi, zero;
    int z_r, z_y;
    unsigned turn;

    COC_FN Finish(const Output& out)
        : ratio(out.ratio), lo(out.lo), hi(out.hi), zero(8388608.f + (float)(out.z_r + (out.r_signed ? 128 : 0))), z_r(out.z_r),
          z_y(out.z_y), turn(out.r_signed ? 0x80808080u : 0u) {}
    // r - z_r. A byte is the last of the float 2^23 + byte; signed ones are turned into those 128 above.
    COC_FN float centred(const EightResiduals& r, int e) const {
        if constexpr (sizeof(RT) == 1)
            return __fsub_rn(__uint_as_float(__byte_perm(r.words[e / 4] ^ turn, 0x4b000000u, 0x7650 + e % 4)), zero);
        else
            return (float)((int)(short)(r.words[e / 2] >> e % 2 * 16) - z_r);
    }
    COC_FN OUT of(float t, const EightResiduals& r, int e) const {
        if constexpr (RESIDUAL) t = __fadd_rn(t, __fmul_rn(centred(r, e), ratio));
        if constexpr ((float)(OUT)0.5f == 0.5f)
            return t;  // a float result
        else if constexpr (sizeof(OUT) == 4)
            return (OUT)rounded(t, lo, hi, z_y);
        else
            return (OUT)(ROUND_LOW(fminf(fmaxf(t, lo), hi)) + z_y);
    }
};

COC_FN EightResiduals residuals_at(const Layer& layer, i64 at, int channel) {
    if constexpr (EIGHTS) return *(const EightResiduals*)(layer.residual + at);
    EightResiduals r = {};
    constexpr int per = 4 / sizeof(RT);
    for (int e = 0; e < 8; e++)
        if (channel + e < layer.of_group)
            r.words[e / per] |= ((unsigned)layer.residual[at + e] & (sizeof(RT) == 1 ? 255u : 65535u)) << e % per * 8 * sizeof(RT);
    return r;
}
COC_FN void put_eight(const Layer& layer, const Finish& finish, const float (&t)[8], const EightResiduals& r, i64 at, int channel) {
    Eight results;
#pragma unroll
    for (int e = 0; e < 8; e++) results.v[e] = finish.of(t[e], r, e);
    if constexpr (EIGHTS) {
        *(Eight*)(layer.y + at) = results;
    } else {
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (channel + e < layer.of_group) layer.y[at + e] = results.v[e];
    }
}

typedef int Sums[WARP_M / 16][4][4];  // of a thread and 32 channels, as mma_16x8x32 has them: 16 pixels x 8 channels each

// Sums begin with b of eight channels.
COC_FN void begin_sums(Sums& acc, const int* b) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Four<int> four = *(const Four<int>*)(b + half * 4);
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
            for (int e = 0; e < 8; e++) acc[i][half * 2 + e / 4][e % 4] = four.v[e / 4 * 2 + e % 2];
    }
}

// 64 numbers of depth, of the buffer that begins at word `begin`, by a warp.
template <class S>
COC_FN void multiply(Sums (&acc)[ACROSS], const S& tile, int begin, int warp_m, int warp_n) {
    // which row of 16 bytes a lane names to ldmatrix: of x, rows 0-7, 8-15, then 16 bytes on; of w, 16 bytes on, then rows 8-15
    const int lane = threadIdx.x % 32, row_x = warp_m * WARP_M + lane % 16, chunk_x = lane / 16;
    const int row_w = warp_n * WARP_N + lane / 16 * 8 + lane % 8, chunk_w = lane / 8 % 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned left[WARP_M / 16][4];
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++) ldmatrix_x4(left[i], tile, begin + placed(row_x + i * 16, half * 2 + chunk_x));
#pragma unroll
        for (int j = 0; j < WARP_N / 16; j++) {
            unsigned right[4];
            ldmatrix_x4(right, tile, begin + BLOCK_M * 16 + placed(row_w + j * 16, half * 2 + chunk_w));
#pragma unroll
            for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const unsigned both[2] = {right[k * 2], right[k * 2 + 1]};
                    mma_16x8x32<XT>(acc[j / 2][i][j % 2 * 2 + k], left[i], both);
                }
        }
    }
}

typedef EightResiduals Residuals[WARP_M / 8];

// The residuals of a thread, all at once, so that none waits for another.
COC_FN void get_residuals(Residuals& r, const Layer& layer, int top, int channel) {
    const i64 image = (i64)layer.groups * layer.of_group, own = (i64)blockIdx.z * layer.of_group + channel;
    const int count = (int)layer.pixels - top;
#pragma unroll
    for (int i = 0; i < WARP_M / 8; i++)
        if (i * 8 < count) r[i] = residuals_at(layer, (top + i * 8) * image + own, channel);
}

// The results of a thread: eight channels of every eighth pixel from `top` on.
COC_FN void put_sums(const Layer& layer, const Finish& finish, const Sums& acc, const Residuals& r, int top, int channel, i64 place) {
    const i64 image = (i64)layer.groups * layer.of_group, own = (i64)blockIdx.z * layer.of_group + channel;
    const int count = (int)layer.pixels - top;
    float M[8], B[8];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Four<float> factors = *(const Four<float>*)(layer.M + place + half * 4);
        const Four<float> shifts = *(const Four<float>*)(layer.B + place + half * 4);
#pragma unroll
        for (int e = 0; e < 4; e++) M[half * 4 + e] = factors.v[e], B[half * 4 + e] = shifts.v[e];
    }
#pragma unroll
    for (int i = 0; i < WARP_M / 8; i++) {
        float t[8];
#pragma unroll
        for (int e = 0; e < 8; e++) t[e] = SCALE_AND_SHIFT((float)acc[i / 2][e / 2][i % 2 * 2 + e % 2], M[e], B[e]);
        if (i * 8 < count) put_eight(layer, finish, t, r[i], (top + i * 8) * image + own, channel);
    }
}

KERNEL_BLOCKS(cuda_conv_mma, THREADS, BLOCKS, const XT* x, const s8* weights, const int* b, const float* M, const float* B,
              const RT* residual, OUT* y, int groups, int channels, int of_group, int rows, int depth, int z_x, int pixels,
              int tiles_n, WINDOW_PARAMETERS, OUTPUT_PARAMETERS) {
    SHARED_DYNAMIC(unsigned, tile);
    const unsigned z = (z_x & 255) * 0x01010101u;
    const Layer layer = {x, weights, M, B, residual, y, groups, channels, of_group, rows, depth, z, (unsigned)pixels};
    const Window v = WINDOW;
    const int warp = threadIdx.x / 32, warp_m = warp / WARPS_N, warp_n = warp % WARPS_N, lane = threadIdx.x % 32;
    const int first = (int)(blockIdx.x / tiles_n) * BLOCK_M, first_row = (int)(blockIdx.x % tiles_n) * BLOCK_N;
    const int channel = first_row + warp_n * WARP_N + lane % 4 * 8, steps = depth / 64;  // the first of eight channels
    const i64 place = (i64)blockIdx.z * rows + channel;
    Sums acc[ACROSS] = {};
#pragma unroll
    for (int j = 0; j < ACROSS; j++)
        if (channel + j * 32 < rows) begin_sums(acc[j], b + place + j * 32);
    Copies copies;
    copies.begin(layer, v, first, first_row);
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps) copies.step(layer, v, tile, stage, first_row);
        cp_async_commit();
    }
    Residuals early = {};
    if constexpr (EARLY)
        if (channel < of_group) get_residuals(early, layer, first + warp_m * WARP_M + lane / 4, channel);
    int reading = 0, writing = STAGES - 1;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        BARRIER();  // the copies of all threads are there, and nobody reads what was read a step ago
        if (step + STAGES - 1 < steps) copies.step(layer, v, tile, writing, first_row);
        cp_async_commit();
        writing = writing + 1 == STAGES ? 0 : writing + 1;
        multiply(acc, tile, reading * STAGE, warp_m, warp_n);
        reading = reading + 1 == STAGES ? 0 : reading + 1;
    }
    const Finish finish(OUTPUT);
#pragma unroll
    for (int j = 0; j < ACROSS; j++)
        if (channel + j * 32 < of_group) {
            const int top = first + warp_m * WARP_M + lane / 4;
            if constexpr (EARLY) {
                put_sums(layer, finish, acc[j], early, top, channel + j * 32, place + j * 32);
            } else {
                Residuals r = {};
                if constexpr (RESIDUAL) get_residuals(r, layer, top, channel + j * 32);
                put_sums(layer, finish, acc[j], r, top, channel + j * 32, place + j * 32);
            }
        }
}
