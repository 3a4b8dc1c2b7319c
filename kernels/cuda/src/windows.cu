// Windows of images [N,C,*size] as [N,C,*count,*kernel], and their sums. SIZE: bytes of an element; TYPE: that of sums.
#include "dividing.cuh"
#include "units.cuh"

struct Windows {
    int axes, taps;
    int size[4], count[4], kernel[4], stride[4], before[4], dilation[4];
};

KERNEL(unfold, void* out, const void* x, Windows w, Unit fill, i64 n) {
    FOR_EACH(i, n) {
        i64 left = i;
        int tap[4];
#pragma unroll
        for (int axis = 3; axis >= 0; axis--)
            if (axis < w.axes) tap[axis] = (int)split_off(left, w.kernel[axis]);
        i64 from = 0, step = 1;
        bool inside = true;
#pragma unroll
        for (int axis = 3; axis >= 0; axis--)
            if (axis < w.axes) {
                const int window = (int)split_off(left, w.count[axis]);
                const int at = window * w.stride[axis] + tap[axis] * w.dilation[axis] - w.before[axis];
                inside &= (unsigned)at < (unsigned)w.size[axis];
                from += at * step;
                step *= w.size[axis];
            }
        ((Unit*)out)[i] = inside ? ((const Unit*)x)[left * step + from] : fill;
    }
}

// Each element sums what windows hold of it, by taps from the first to the last.
KERNEL(fold, TYPE* out, const TYPE* cols, Windows w, i64 n) {
    FOR_EACH(i, n) {
        i64 left = i, windows = 1;
        int at[4], tap[4];
#pragma unroll
        for (int axis = 3; axis >= 0; axis--)
            if (axis < w.axes) {
                at[axis] = (int)split_off(left, w.size[axis]) + w.before[axis];
                tap[axis] = 0;
                windows *= w.count[axis];
            }
        wide_t<TYPE> sum = 0;
        for (int number = 0; number < w.taps; number++) {
            i64 window = 0, step = 1;
            bool hit = true, next = true;  // next: the taps behind this axis have come to their end
#pragma unroll
            for (int axis = 3; axis >= 0; axis--)
                if (axis < w.axes) {
                    const int start = at[axis] - tap[axis] * w.dilation[axis];
                    const int place = w.stride[axis] == 1 ? start : start / w.stride[axis];
                    hit &= start >= 0 && place * w.stride[axis] == start && place < w.count[axis];
                    window += place * step;
                    step *= w.count[axis];
                    if (next) {
                        next = ++tap[axis] == w.kernel[axis];
                        if (next) tap[axis] = 0;
                    }
                }
            if (hit) sum = sum + widen(cols[(left * windows + window) * w.taps + number]);
        }
        out[i] = narrow<TYPE>(sum);
    }
}
