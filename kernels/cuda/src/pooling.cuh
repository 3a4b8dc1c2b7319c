// What pooling kernels share: windows over up to three axes of space. Values lie in planes [z, y, x] of `channels` numbers;
// a plane is a channel of a picture, or, with channels last, a picture.
// TALL, BROAD: the sizes of windows without gaps over the last two axes, known to the compiler; 0 for all others. Windows
// of known sizes hold at least one place of the plane.
#pragma once

struct Windows {
    int size[3], count[3], kernel[3], stride[3], before[3], dilation[3];
};

// A window along an axis: where its first tap lies, and which taps lie inside.
struct Reach {
    int from, begin, end;
    COC_FN Reach(const Windows& w, int axis, int number) {
        const int step = TALL ? 1 : w.dilation[axis], left = w.size[axis] - 1;
        from = number * w.stride[axis] - w.before[axis];
        begin = from >= 0 ? 0 : (step - 1 - from) / step;
        end = from > left ? 0 : (left - from) / step + 1;
        end = end < w.kernel[axis] ? end : w.kernel[axis];
    }
    COC_FN bool holds(int tap) const { return tap >= begin && tap < end; }
};

// The window of a place of the result, of which `pixel` is the number.
struct Window {
    Reach z, y, x;
    COC_FN Window(const Windows& w, unsigned pixel)
        : z(w, 0, (int)(pixel / w.count[2] / w.count[1])),
          y(w, 1, (int)(pixel / w.count[2] % w.count[1])),
          x(w, 2, (int)(pixel % w.count[2])) {}
    // Whether the first tap lies inside.
    COC_FN bool begins_inside() const { return z.holds(0) && y.holds(0) && x.holds(0); }
    COC_FN int inside() const { return extent(z) * extent(y) * extent(x); }
    static COC_FN int extent(const Reach& axis) { return axis.end > axis.begin ? axis.end - axis.begin : 0; }
};

COC_FN int between(int v, int end) { return v < 0 ? 0 : v < end ? v : end - 1; }

// visit(place, tap, inside) for the taps of a window in their order; a tap outside, if it is visited, has a place of the
// window too, so that all loads may begin at once.
template <class Visit>
COC_FN void each_tap(const Windows& w, const Window& at, Visit visit) {
#if TALL
#pragma unroll
    for (int r = 0; r < TALL; r++) {
        const int row = between(at.y.from + r, w.size[1]) * w.size[2];
#pragma unroll
        for (int s = 0; s < BROAD; s++)
            visit(row + between(at.x.from + s, w.size[2]), r * BROAD + s, at.y.holds(r) && at.x.holds(s));
    }
#else
#pragma unroll 1
    for (int q = at.z.begin; q < at.z.end; q++)
#pragma unroll 1
        for (int r = at.y.begin; r < at.y.end; r++) {
            const int row = ((at.z.from + q * w.dilation[0]) * w.size[1] + at.y.from + r * w.dilation[1]) * w.size[2];
#pragma unroll 1
            for (int s = at.x.begin; s < at.x.end; s++)
                visit(row + at.x.from + s * w.dilation[2], (q * w.kernel[1] + r) * w.kernel[2] + s, true);
        }
#endif
}

COC_FN i64 volume(const int (&lengths)[3]) { return (i64)lengths[0] * lengths[1] * lengths[2]; }

// What loses to every number, of numbers that are computed with.
template <class T>
struct Lowest {
    static COC_FN T value() { return (T)-1 < (T)0 ? (T)(1ull << (8 * sizeof(T) - 1)) : (T)0; }
};
template <>
struct Lowest<float> {
    static COC_FN float value() { return __uint_as_float(0xff800000u); }
};
template <>
struct Lowest<double> {
    static COC_FN double value() { return __uint_as_float(0xff800000u); }
};

// Places of a plane by x of block and grid, planes by y.
#define EACH_PLANE(plane, planes)                                                                                        \
    for (i64 plane = (i64)blockIdx.y * blockDim.y + threadIdx.y; plane < (planes); plane += (i64)gridDim.y * blockDim.y)
