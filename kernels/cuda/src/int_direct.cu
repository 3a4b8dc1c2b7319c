// Integer convolution by any GPU, channels last: any channels, groups and types. XT, OUT, RT: types of elements of x, results
// and residuals (u8 for both kinds of 8 bits of the latter two); ACC: the type of sums; BYTES: 1 where x has 8 bits.
// Weights [groups, rows, taps, padded], padded: the channels of a group filled up with zeros to a multiple of 4.
#include "integer.cuh"
#ifndef BARRIER
#define BARRIER() __syncthreads()
#endif
#define STEP 8
#define WORDS (BYTES ? 4 : 1)  // numbers of depth in a word

struct Layer {
    const s8* w;
    int channels, padded, z_x, depth;  // channels of a group, padded; words of a row of w
};

// A place of the depth: a word of one tap, of the pixel at (top, left) of an image.
COC_FN unsigned fetched(const Layer& layer, const Window& v, const XT* image, int top, int left, int k) {
    const int words = layer.padded / WORDS, c = k % words * WORDS, tap = k / words;
    const int iy = top + tap / v.kw * v.dy, ix = left + tap % v.kw * v.dx;
    if (iy < 0 || iy >= v.h || ix < 0 || ix >= v.w) return BYTES ? (layer.z_x & 255) * 0x01010101u : 0u;
    const XT* from = image + (i64)(iy * v.w + ix) * v.pitch + c;
    if constexpr (!BYTES) return c < layer.channels ? (unsigned)((int)*from - layer.z_x) : 0u;  // here b does not hold z_x
    if (layer.channels % 4 == 0 && v.pitch % 4 == 0) return *(const unsigned*)from;
    unsigned word = 0;
    for (int e = 0; e < 4 && c + e < layer.channels; e++) word |= (unsigned)(u8)from[e] << 8 * e;
    return word;
}
COC_FN ACC added(unsigned x, unsigned w, ACC acc) {
    if constexpr (BYTES)
        return dot4<XT>(x, w, (int)acc);
    else
        return acc + (ACC)(int)x * (ACC)(int)w;
}
COC_FN unsigned weight(const Layer& layer, i64 row, int k) {
    const i64 at = row * layer.depth + k;
    if constexpr (BYTES)
        return __ldg((const unsigned*)layer.w + at);
    else
        return (unsigned)(int)__ldg(layer.w + at);
}
COC_FN void put(const Output& out, ACC acc, int b, float M, float B, const RT* residual, OUT* y, i64 at) {
    const float t = scaled(acc, b, M, B);
    y[at] = out.of<OUT>(residual ? out.with(t, residual[at]) : t);
}

#define DIRECT_PARAMETERS                                                                                            \
    const XT *x, const s8 *weights, const int *b, const float *M, const float *B, const RT *residual, OUT *y, int groups, \
        int channels, int of_group, int rows, int padded, int z_x, i64 pixels, WINDOW_PARAMETERS, OUTPUT_PARAMETERS

// 64 pixels x 64 channels a block, 4 x 4 a thread; z: the group.
KERNEL_BOUNDS(cuda_conv_tiles, 256, DIRECT_PARAMETERS) {
    SHARED(unsigned, xs, STEP * 65);
    SHARED(unsigned, ws, STEP * 65);
    const Window v = WINDOW;
    const int depth = v.kh * v.kw * (padded / WORDS);
    const Layer layer = {weights, channels, padded, z_x, depth};
    const int across = threadIdx.x % 16, down = threadIdx.x / 16, fetches = threadIdx.x % STEP;
    const i64 first = (i64)blockIdx.x * 64;
    const XT* image[2];
    int top[2], left[2];
    for (int i = 0; i < 2; i++) {
        const i64 p = first + threadIdx.x / STEP + i * 32;
        image[i] = p < pixels ? x + p / v.ow / v.oh * v.h * v.w * v.pitch + blockIdx.z * channels : nullptr;
        top[i] = (int)(p / v.ow % v.oh) * v.sy - v.py, left[i] = (int)(p % v.ow) * v.sx - v.px;
    }
    ACC acc[4][4] = {};
    for (int k0 = 0; k0 < depth; k0 += STEP) {
        const int k = k0 + fetches;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = threadIdx.x / STEP + i * 32, o = blockIdx.y * 64 + row;
            xs[fetches * 65 + row] = k < depth && image[i] ? fetched(layer, v, image[i], top[i], left[i], k) : 0u;
            ws[fetches * 65 + row] = k < depth && o < rows ? weight(layer, (i64)blockIdx.z * rows + o, k) : 0u;
        }
        BARRIER();
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            unsigned mine[4], given[4];
#pragma unroll
            for (int e = 0; e < 4; e++) mine[e] = xs[i * 65 + down + e * 16], given[e] = ws[i * 65 + across + e * 16];
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int n = 0; n < 4; n++) acc[m][n] = added(mine[m], given[n], acc[m][n]);
        }
        BARRIER();
    }
    const Output out = OUTPUT;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int channel = blockIdx.y * 64 + across + n * 16;
        if (channel >= of_group) continue;
        const i64 place = (i64)blockIdx.z * rows + channel;
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const i64 pixel = first + down + m * 16, at = (pixel * groups + blockIdx.z) * of_group + channel;
            if (pixel < pixels) put(out, acc[m][n], b[place], M[place], B[place], residual, y, at);
        }
    }
}

// One result a thread, for few channels a group.
KERNEL(cuda_conv_each, DIRECT_PARAMETERS) {
    const Window v = WINDOW;
    const Output out = OUTPUT;
    const Layer layer = {weights, channels, padded, z_x, v.kh * v.kw * (padded / WORDS)};
    const i64 o = (i64)groups * of_group;
    FOR_EACH(i, pixels * o) {
        const INDEX p = (INDEX)i / (INDEX)o, line = p / (INDEX)v.ow, picture = line / (INDEX)v.oh;
        const int channel = (int)((INDEX)i - p * (INDEX)o), group = channel / of_group;
        const i64 place = (i64)group * rows + channel % of_group;
        const XT* image = x + (i64)picture * v.h * v.w * v.pitch + group * channels;
        const int top = (int)(line - picture * v.oh) * v.sy - v.py, left = (int)(p - line * v.ow) * v.sx - v.px;
        ACC acc = 0;
        for (int k = 0; k < layer.depth; k++) acc = added(fetched(layer, v, image, top, left, k), weight(layer, place, k), acc);
        put(out, acc, b[place], M[place], B[place], residual, y, i);
    }
}
