// Depthwise integer convolution, channels last, of a multiple of four channels: four neighbours a thread, in ACROSS columns.
// XT: u8 or s8; OUT, RT: types of results and residuals, u8 for both kinds of 8 bits. Weights [taps, channels].
// WIDTH: columns of a window without dilation, STRIDE: its step, where they are known; else 0.
#include "integer.cuh"

typedef int Sums[ACROSS][4];

// A row of windows of known width: numbers that several windows share are read once.
COC_FN void add_known_row(Sums& acc, const XT* image, const s8* weights, const Window& v, int iy, int left, int channels, int z_x) {
#if WIDTH
    constexpr int columns = (ACROSS - 1) * STRIDE + WIDTH;
    int numbers[columns][4];
#pragma unroll
    for (int k = 0; k < columns; k++) {
        const int ix = left + k;
        Four<XT> four = {{(XT)z_x, (XT)z_x, (XT)z_x, (XT)z_x}};
        if (iy >= 0 && iy < v.h && ix >= 0 && ix < v.w) four = *(const Four<XT>*)(image + (i64)(iy * v.w + ix) * v.pitch);
#pragma unroll
        for (int e = 0; e < 4; e++) numbers[k][e] = (int)four.v[e];
    }
#pragma unroll
    for (int s = 0; s < WIDTH; s++) {
        const Four<s8> factors = *(const Four<s8>*)(weights + (i64)s * channels);
#pragma unroll
        for (int k = 0; k < ACROSS; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[k][e] += numbers[k * STRIDE + s][e] * (int)factors.v[e];
    }
#endif
}

COC_FN void add_row(Sums& acc, const XT* image, const s8* weights, const Window& v, int iy, int left, int channels, int z_x) {
    const bool inside = iy >= 0 && iy < v.h;
    for (int s = 0; s < v.kw; s++) {
        const Four<s8> factors = *(const Four<s8>*)(weights + (i64)s * channels);
#pragma unroll
        for (int k = 0; k < ACROSS; k++) {
            const int ix = left + k * v.sx + s * v.dx;
            Four<XT> numbers = {{(XT)z_x, (XT)z_x, (XT)z_x, (XT)z_x}};
            if (inside && ix >= 0 && ix < v.w) numbers = *(const Four<XT>*)(image + (i64)(iy * v.w + ix) * v.pitch);
#pragma unroll
            for (int e = 0; e < 4; e++) acc[k][e] += (int)numbers.v[e] * (int)factors.v[e];
        }
    }
}

KERNEL(cuda_depthwise, const XT* x, const s8* weights, const int* b, const float* M, const float* B, const RT* residual, OUT* y,
       int channels, int z_x, i64 rows, WINDOW_PARAMETERS, OUTPUT_PARAMETERS) {
    const Window v = WINDOW;
    const Output out = OUTPUT;
    const int quads = channels / 4, strips = (v.ow + ACROSS - 1) / ACROSS;
    FOR_EACH(i, rows * strips * quads) {
        const INDEX strip = (INDEX)i / (INDEX)quads, row = strip / (INDEX)strips, picture = row / (INDEX)v.oh;  // rows of all
        const int c = (int)((INDEX)i - strip * quads) * 4, column = (int)(strip - row * strips) * ACROSS;
        const int top = (int)(row - picture * v.oh) * v.sy - v.py, left = column * v.sx - v.px;
        const XT* image = x + (i64)picture * v.h * v.w * v.pitch + c;
        Sums acc = {};
        for (int r = 0; r < v.kh; r++) {
            const s8* own = weights + (i64)r * v.kw * channels + c;
            if constexpr (WIDTH != 0)
                add_known_row(acc, image, own, v, top + r * v.dy, left, channels, z_x);
            else
                add_row(acc, image, own, v, top + r * v.dy, left, channels, z_x);
        }
        const Four<int> bs = *(const Four<int>*)(b + c);
        const Four<float> Ms = *(const Four<float>*)(M + c), Bs = *(const Four<float>*)(B + c);
#pragma unroll
        for (int k = 0; k < ACROSS; k++) {
            if (column + k >= v.ow) break;
            const i64 at = ((i64)row * v.ow + column + k) * channels + c;
            Four<OUT> results;
            Four<RT> r;
            if (residual) r = *(const Four<RT>*)(residual + at);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float t = scaled(acc[k][e], bs.v[e], Ms.v[e], Bs.v[e]);
                results.v[e] = out.of<OUT>(residual ? out.with(t, r.v[e]) : t);
            }
            *(Four<OUT>*)(y + at) = results;
        }
    }
}
