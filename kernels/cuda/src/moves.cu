// Copies between strided places. SIZE: bytes of a unit, which may be several elements that lie side by side in both.
#include "units.cuh"

struct Walk {
    int axes;
    Lengths lengths;
    i64 from[MOST_AXES], to[MOST_AXES], first_from, first_to;  // in units
};

template <int AXES>
COC_FN void walked(void* out, const void* x, const Walk& walk, unsigned n) {
    EACH_UNIT(i, n) {
        unsigned left = i;
        i64 from = walk.first_from, to = walk.first_to;
#pragma unroll
        for (int axis = AXES - 1; axis > 0; axis--) {
            const unsigned at = split_off(walk.lengths, axis, left);
            from += at * walk.from[axis];
            to += at * walk.to[axis];
        }
        ((Unit*)out)[to + left * walk.to[0]] = ((const Unit*)x)[from + left * walk.from[0]];
    }
}
KERNEL(move_1, void* out, const void* x, Walk walk, unsigned n) { walked<1>(out, x, walk, n); }
KERNEL(move_2, void* out, const void* x, Walk walk, unsigned n) { walked<2>(out, x, walk, n); }
KERNEL(move_3, void* out, const void* x, Walk walk, unsigned n) { walked<3>(out, x, walk, n); }
KERNEL(move_4, void* out, const void* x, Walk walk, unsigned n) { walked<4>(out, x, walk, n); }
KERNEL(move_many, void* out, const void* x, Walk walk, unsigned n) {
    EACH_UNIT(i, n) {
        unsigned left = i;
        i64 from = walk.first_from, to = walk.first_to;
        for (int axis = walk.axes - 1; axis >= 0; axis--) {
            const unsigned at = split_off(walk.lengths, axis, left);
            from += at * walk.from[axis];
            to += at * walk.to[axis];
        }
        ((Unit*)out)[to] = ((const Unit*)x)[from];
    }
}

// Units of which those outside the source are `fill` (NEAREST 0), or stand for the nearest inside, at the edge (1) or
// mirrored at it (2).
struct Border {
    int axes;
    Lengths lengths;  // of the result
    int before[MOST_AXES], length[MOST_AXES];  // of the source: coordinate - before lies in [0, length)
    i64 from[MOST_AXES], first_to;
};
template <int NEAREST>
COC_FN void bordered(void* out, const void* x, const Border& border, Unit fill, unsigned n) {
    EACH_UNIT(i, n) {
        unsigned left = i;
        i64 from = 0;
        bool inside = true;
        for (int axis = border.axes - 1; axis >= 0; axis--) {
            const int length = border.length[axis];
            int at = (int)split_off(border.lengths, axis, left) - border.before[axis];
            if (NEAREST == 1) at = at < 0 ? 0 : at < length ? at : length - 1;
            if (NEAREST == 2) at = at < 0 ? -at : at < length ? at : 2 * (length - 1) - at;
            inside &= (unsigned)at < (unsigned)length;
            from += at * border.from[axis];
        }
        ((Unit*)out)[border.first_to + i] = inside ? ((const Unit*)x)[from] : fill;
    }
}
KERNEL(pad_constant, void* out, const void* x, Border border, Unit fill, unsigned n) { bordered<0>(out, x, border, fill, n); }
KERNEL(pad_edge, void* out, const void* x, Border border, Unit fill, unsigned n) { bordered<1>(out, x, border, fill, n); }
KERNEL(pad_reflect, void* out, const void* x, Border border, Unit fill, unsigned n) { bordered<2>(out, x, border, fill, n); }
