// Convolutions of groups of few channels, on which tiles would be wasted. Macros: those of convolution.cuh.
#include "weighing.cuh"

// f(from, at) for the taps of the window at a corner that lie inside of x, in their order: a tap reads x at
// `from`, and its weight lies `at` elements from the first.
template <class F>
COC_FN void for_taps(const Window& g, const Corner& corner, F f) {
    if (!g.sums) return;
    const int across = g.line_taps.by, down = (int)g.plane_taps.by / across;
    const int deep = (int)g.taps.by / (int)g.plane_taps.by;
    for (int z = 0; z < deep; z++) {
        if ((unsigned)(corner.p.z + z * g.step[0]) >= (unsigned)g.size[0]) continue;
        for (int y = 0; y < down; y++) {
            if ((unsigned)(corner.p.y + y * g.step[1]) >= (unsigned)g.size[1]) continue;
            const INDEX line = corner.at + z * g.step[0] * g.x_axis[0] + y * g.step[1] * g.x_axis[1];
            for (int x = 0; x < across; x++)
                if ((unsigned)(corner.p.x + x * g.step[2]) < (unsigned)g.size[2])
                    f(line + x * g.step[2] * g.x_axis[2],
                      (i64)z * g.w_axis[0] + (i64)y * g.w_axis[1] + (i64)x * g.w_axis[2]);
        }
    }
}

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
        for_taps(g, corner, [&](INDEX from, i64 at) {
            for (int c = 0; c < g.taken; c++)
                sum = sum + (ACC)widen(windows.x[from + c * g.x_channel]) *
                                (ACC)widen(weights[at + (i64)c * g.w_taken]);
        });
        const Out out = out_of(g, group, bias, residual, y);
        const Channel at_channel = out.channel(channel);
        const Step at_pixel = out.pixel(pixel);
        *out.find(at_channel, at_pixel) = out.made(at_channel, at_pixel, sum);
    }
}

#if LAST
constexpr int kRun = 16 / sizeof(TYPE);
struct alignas(16) Run {
    TYPE v[kRun];
};
// One thread makes neighbouring channels of y, each of which reads one channel of x: w is [tap, channel].
KERNEL(convolve_depthwise, const TYPE* x, const TYPE* w, const TYPE* bias, const TYPE* residual, TYPE* y,
       Window g) {
    const int runs = g.groups / kRun;
    FOR_EACH(i, (i64)runs * g.places) {
        const int first = (int)(i % runs) * kRun, pixel = (int)(i / runs);
        const Windows windows = {g, x + first};
        const Corner corner = windows.corner(pixel, g.places);
        ACC sums[kRun];
#pragma unroll
        for (int e = 0; e < kRun; e++) sums[e] = 0;
        for_taps(g, corner, [&](INDEX from, i64 at) {
            const Run a = *reinterpret_cast<const Run*>(x + from + first);
            const Run b = *reinterpret_cast<const Run*>(w + (g.w_start + at) * g.groups + first);
#pragma unroll
            for (int e = 0; e < kRun; e++) sums[e] = sums[e] + (ACC)widen(a.v[e]) * (ACC)widen(b.v[e]);
        });
        const Image image = {g, y + g.y_start, nullptr, residual ? residual + g.y_start : residual};
        const INDEX at = image.pixel(pixel).at + first;
        Run made;
#pragma unroll
        for (int e = 0; e < kRun; e++)
            made.v[e] = finished(sums[e], bias_of(bias, first + e, true), image.residual, at + e);
        *reinterpret_cast<Run*>(image.y + at) = made;
    }
}
#endif

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
