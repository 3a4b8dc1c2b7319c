// Pictures in other sizes. TYPE: that of elements; WEIGHT and SUM: of weights and sums. AXES: 1, 2 or 3. Along each axis
// an element is a sum of `taps` others, named by index [length, taps], times weight [length, taps]; the axes are summed
// over in their order. `inner` elements lie side by side at each place.
#include "dividing.cuh"

struct Sizes {
    int taps, inner;
    int from[AXES], to[AXES];
};

template <int AXIS>
COC_FN SUM summed(const TYPE* x, const int* const (&index)[AXES], const WEIGHT* const (&weight)[AXES], const Sizes& sizes,
                  const int (&at)[AXES], int shift) {
    if constexpr (AXIS < 0) {
        return (SUM)widen(*x) - (SUM)shift;
    } else {
        int apart = sizes.inner;
#pragma unroll
        for (int axis = AXIS + 1; axis < AXES; axis++) apart *= sizes.from[axis];
        SUM total = 0;
        for (int t = 0; t < sizes.taps; t++) {
            const int tap = at[AXIS] * sizes.taps + t;
            const TYPE* there = x + (i64)index[AXIS][tap] * apart;
            const SUM product = summed<AXIS - 1>(there, index, weight, sizes, at, shift) * (SUM)weight[AXIS][tap];
            total = t ? total + product : product;
        }
        return total;
    }
}

COC_FN SUM resized(const TYPE* x, const int* i0, const int* i1, const int* i2, const WEIGHT* w0, const WEIGHT* w1,
                   const WEIGHT* w2, const Sizes& sizes, i64 i, int shift) {
    i64 left = i, picture = sizes.inner;
    const int column = (int)split_off(left, sizes.inner);
    int at[AXES];
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; axis--) {
        at[axis] = (int)split_off(left, sizes.to[axis]);
        picture *= sizes.from[axis];
    }
    const int* const all_indices[3] = {i0, i1, i2};
    const WEIGHT* const all_weights[3] = {w0, w1, w2};
    const int* index[AXES];
    const WEIGHT* weight[AXES];
#pragma unroll
    for (int axis = 0; axis < AXES; axis++) index[axis] = all_indices[axis], weight[axis] = all_weights[axis];
    return summed<AXES - 1>(x + left * picture + column, index, weight, sizes, at, shift);
}

KERNEL(resize, TYPE* out, const TYPE* x, const int* i0, const int* i1, const int* i2, const WEIGHT* w0,
       const WEIGHT* w1, const WEIGHT* w2, Sizes sizes, i64 n) {
    FOR_EACH(i, n) out[i] = narrow<TYPE>(resized(x, i0, i1, i2, w0, w1, w2, sizes, i, 0));
}

#ifdef WHOLE
// Integers on their own scale: whole weights of sum 2**bits, exact sums, halves rounded to even.
KERNEL(resize_whole, TYPE* out, const TYPE* x, const int* i0, const int* i1, const int* i2, const WEIGHT* w0,
       const WEIGHT* w1, const WEIGHT* w2, Sizes sizes, int bits, int zero, int lo, int hi, i64 n) {
    FOR_EACH(i, n) {
        const SUM sum = resized(x, i0, i1, i2, w0, w1, w2, sizes, i, zero);
        const SUM down = sum >> bits, rest = sum - (down << bits), half = (SUM)1 << (bits - 1);
        const SUM whole = down + (rest > half || (rest == half && (down & 1)));
        out[i] = (TYPE)((whole < lo ? lo : whole > hi ? hi : whole) + zero);
    }
}
#endif
