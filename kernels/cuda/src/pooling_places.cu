// Where the largest number of each window lies, and the gradient that goes there. TAP: the type of numbers of taps.
// The first of equal numbers wins, the first NaN before all others; so does a tap outside, which holds the lowest number.
#include "pooling.cuh"

// The tap of the largest number of a window, and its place; -1 for one outside.
struct Best {
    wide_t<TYPE> value;
    int tap, place;
    COC_FN Best(const Windows& w, const Window& at, const TYPE* from) : value(Lowest<wide_t<TYPE>>::value()), tap(-1), place(-1) {
        bool none = !at.begins_inside();
        each_tap(w, at, [&](int there, int number, bool inside) {
            const wide_t<TYPE> v = widen(from[there]);
            const bool wins = v > value || (v != v && value == value) || (!none && tap < 0);
            if (inside && wins) value = v, tap = number, place = there;
        });
    }
};

// Places in the whole array; with columns_first the axes of space count in reversed order.
KERNEL_BLOCKS(cuda_pool_places, 256, 3, const TYPE* x, i64* y, Windows w, i64 planes, int columns_first) {
    const unsigned pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= volume(w.count)) return;
    const Window at(w, pixel);
    EACH_PLANE(plane, planes) {
        const i64 first = plane * volume(w.size);
        i64 place = Best(w, at, x + first).place;
        place = place < 0 ? 0 : place;
        if (columns_first) {
            const i64 column = place % w.size[2], row = place / w.size[2] % w.size[1], depth = place / w.size[2] / w.size[1];
            place = (column * w.size[1] + row) * w.size[0] + depth;
        }
        y[plane * volume(w.count) + pixel] = first + place;
    }
}

KERNEL_BLOCKS(cuda_pool_taps, 256, 3, const TYPE* x, TAP* taps, Windows w, i64 planes) {
    const unsigned pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= volume(w.count)) return;
    const Window at(w, pixel);
    EACH_PLANE(plane, planes) taps[plane * volume(w.count) + pixel] = (TAP)Best(w, at, x + plane * volume(w.size)).tap;
}

// The windows that hold a place along an axis, from the last to the first.
struct Holders {
    int last, first;
    COC_FN Holders(const Windows& w, int axis, int at) {
        const int k = TALL ? axis == 1 ? TALL : BROAD : w.kernel[axis], place = at + w.before[axis], step = w.stride[axis];
        last = place / step < w.count[axis] ? place / step : w.count[axis] - 1;
        first = place < k ? 0 : (place - k) / step + 1;
    }
};

// Gradients of elements, by their places in x: the sum over windows that chose it, in the order of taps.
// AGAIN: along an axis at most so many windows hold a place; 0 where that is not known.
KERNEL_BLOCKS(cuda_pool_backward, 256, 3, const TYPE* ct, const TAP* taps, TYPE* dx, Windows w, i64 planes) {
    const unsigned pixel = blockIdx.x * blockDim.x + threadIdx.x, wide = w.size[2];
    if (pixel >= volume(w.size)) return;
    const int row = pixel / wide, column = pixel % wide;
    const Holders y(w, 1, row), x(w, 2, column);
    const auto tap_in = [&](int oy, int ox) {
        const int r = row + w.before[1] - oy * w.stride[1], s = column + w.before[2] - ox * w.stride[2];
        return r * w.kernel[2] + s;
    };
#if AGAIN
    int offset[AGAIN * AGAIN], wanted[AGAIN * AGAIN];  // windows, and the tap of each that is this place
#pragma unroll
    for (int k = 0; k < AGAIN * AGAIN; k++) {
        const int oy = y.last - k / AGAIN, ox = x.last - k % AGAIN;
        const bool holds = oy >= y.first && ox >= x.first;
        offset[k] = holds ? oy * w.count[2] + ox : 0;
        wanted[k] = holds ? tap_in(oy, ox) : -2;  // the number of no tap
    }
    EACH_PLANE(plane, planes) {
        const i64 windows = plane * volume(w.count);
        wide_t<TYPE> sum = 0;
#pragma unroll
        for (int k = 0; k < AGAIN * AGAIN; k++) {
            const wide_t<TYPE> share = widen(ct[windows + offset[k]]);
            sum = sum + ((int)taps[windows + offset[k]] == wanted[k] ? share : (wide_t<TYPE>)0);
        }
        dx[plane * volume(w.size) + pixel] = narrow<TYPE>(sum);
    }
#else
    EACH_PLANE(plane, planes) {
        const i64 windows = plane * volume(w.count);
        wide_t<TYPE> sum = 0;
        for (int oy = y.last; oy >= y.first; oy--)
            for (int ox = x.last; ox >= x.first; ox--) {
                const i64 window = windows + (i64)oy * w.count[2] + ox;
                if ((int)taps[window] == tap_in(oy, ox)) sum = sum + widen(ct[window]);
            }
        dx[plane * volume(w.size) + pixel] = narrow<TYPE>(sum);
    }
#endif
}
