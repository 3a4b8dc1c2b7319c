// Windows of images [N,C,*size] as [N,C,*count,*kernel], and their sums. SIZE: bytes of an element; TYPE: that of sums.
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
            if (axis < w.axes) tap[axis] = (int)(left % w.kernel[axis]), left /= w.kernel[axis];
        i64 from = 0, step = 1;
        bool inside = true;
#pragma unroll
        for (int axis = 3; axis >= 0; axis--)
            if (axis < w.axes) {
                const int at = (int)(left % w.count[axis]) * w.stride[axis] + tap[axis] * w.dilation[axis] - w.before[axis];
                left /= w.count[axis];
                inside &= (unsigned)at < (unsigned)w.size[axis];
                from += at * step;
                step *= w.size[axis];
            }
        ((Unit*)out)[i] = inside ? ((const Unit*)x)[left * step + from] : fill;
    }
}

KERNEL(fold, TYPE* out, const TYPE* cols, Windows w, i64 n) {
    FOR_EACH(i, n) {
        i64 left = i, windows = 1;
        int at[4];
#pragma unroll
        for (int axis = 3; axis >= 0; axis--)
            if (axis < w.axes) {
                at[axis] = (int)(left % w.size[axis]) + w.before[axis];
                left /= w.size[axis];
                windows *= w.count[axis];
            }
        wide_t<TYPE> sum = 0;
        for (int tap = 0; tap < w.taps; tap++) {
            int rest = tap;
            i64 window = 0, step = 1;
            bool hit = true;
#pragma unroll
            for (int axis = 3; axis >= 0; axis--)
                if (axis < w.axes) {
                    const int start = at[axis] - rest % w.kernel[axis] * w.dilation[axis], place = start / w.stride[axis];
                    rest /= w.kernel[axis];
                    hit &= start >= 0 && place * w.stride[axis] == start && place < w.count[axis];
                    window += place * step;
                    step *= w.count[axis];
                }
            if (hit) sum = sum + widen(cols[(left * windows + window) * w.taps + tap]);
        }
        out[i] = narrow<TYPE>(sum);
    }
}
