// Convolutions of groups of few channels, on which tiles would be wasted. Macros: those of convolution.cuh.
#include "weighing.cuh"

// One thread makes an element of y: for groups of few channels. A sum skips what lies outside of x.
KERNEL(convolve_singly, const TYPE* x, const TYPE* w, const TYPE* bias, const TYPE* residual, TYPE* y,
       Window g) {
    const int channels = g.groups * g.given;
    FOR_EACH(i, (i64)channels * g.places) {
        const int all = (int)(LAST ? i % channels : i / g.places),
                  pixel = (int)(LAST ? i / channels : i % g.places);
        const int group = all / g.given, channel = all % g.given;
        const Windows windows = {g, of_group(x, g, group)};
        const TYPE* weights = w + g.w_start + group * g.w_group + (i64)channel * g.w_given;
        const Corner corner = windows.corner(pixel, g.places);
        ACC sum = 0;
        for (int t = 0; t < (g.sums ? (int)g.taps.by : 0); t++) {
            const Corner tap = windows.tap(0, t);
            if (!windows.inside(corner, tap)) continue;
            const At3 at = spread(t, g.plane_taps, g.line_taps);
            const TYPE* factors =
                weights + (i64)at.z * g.w_axis[0] + (i64)at.y * g.w_axis[1] + (i64)at.x * g.w_axis[2];
            for (int c = 0; c < g.taken; c++)
                sum = sum + (ACC)widen(windows.x[corner.at + tap.at + c * g.x_channel]) *
                                (ACC)widen(factors[c * g.w_taken]);
        }
        const Out out = out_of(g, group, bias, residual, y);
        const Channel at_channel = out.channel(channel);
        const Step at_pixel = out.pixel(pixel);
        *out.find(at_channel, at_pixel) = out.made(at_channel, at_pixel, sum);
    }
}

// One block makes a sum of the gradient for w: [part, group, channel, factor]. Grid: sums, parts.
KERNEL_BOUNDS(weigh_singly, 256, const TYPE* x, const TYPE* y, ACC* sums, Window g) {
    SHARED(ACC, halves, 256);
    const int number = blockIdx.x, f = number % g.sums, channel = number / g.sums % g.given,
              group = number / g.sums / g.given;
    const int first = blockIdx.y * g.part, end = min(g.places, first + g.part);
    const Results results = {g, y + group * g.y_group, end};
    const Factors factors = {{g, of_group(x, g, group)}, end};
    const Step line = results.line(channel);
    const Corner tap = factors.line(f);
    ACC sum = 0;
    for (int i = first + (int)threadIdx.x; i < end; i += 256) {
        const TYPE* other = factors.find(tap, factors.place(i));
        if (other) sum = sum + (ACC)widen(*results.find(line, results.place(i))) * (ACC)widen(*other);
    }
    halves[threadIdx.x] = sum;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) halves[threadIdx.x] = halves[threadIdx.x] + halves[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[(i64)blockIdx.y * g.groups * g.given * g.sums + number] = halves[0];
}
