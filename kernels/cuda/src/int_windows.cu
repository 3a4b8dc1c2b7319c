// Integer averages. XT, YT: types of elements of x and y.
#include "integer.cuh"

// Means of windows; y is dense in the order of x, which has channels last if `last` is 1. Without `padded` only elements
// inside the picture count.
KERNEL(cuda_average, const XT* x, YT* y, int channels, int last, int padded, float ratio, float lo, float hi, int z_x, int z_y,
       i64 n, WINDOW_PARAMETERS) {
    const Window v = WINDOW;
    FOR_EACH(i, n) {
        const INDEX pixel = last ? (INDEX)i / (INDEX)channels : (INDEX)i, line = pixel / (INDEX)v.ow, image = line / (INDEX)v.oh;
        const int left = (int)(pixel - line * v.ow) * v.sx - v.px, top = (int)(line - image * v.oh) * v.sy - v.py;
        const int step = last ? channels : 1, channel = last ? (int)((INDEX)i - pixel * channels) : 0;
        const XT* from = x + (i64)image * v.h * v.w * step + channel;
        i64 sum = 0;
        int count = 0;
        for (int r = 0; r < v.kh; r++)
            for (int s = 0; s < v.kw; s++) {
                const int iy = top + r, ix = left + s;
                if (iy < 0 || iy >= v.h || ix < 0 || ix >= v.w) continue;
                sum += (int)from[(i64)(iy * v.w + ix) * step] - z_x;
                count++;
            }
        const float m = __fdiv_rn(ratio, (float)(padded ? v.kh * v.kw : count));
        y[i] = (YT)rounded(__fmul_rn((float)sum, m), lo, hi, z_y);
    }
}
