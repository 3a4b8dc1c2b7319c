// Rows combined with what stands at their places, several for one place in their order. TYPE: that of elements;
// COMBINE(a, b): ADD, MUL, MAX or MIN of two wide numbers.
#define SIZE 4
#include "units.cuh"

template <class T>
COC_FN T larger(T a, T b) {  // a NaN stays
    return a != a || a > b ? a : b;
}
template <class T>
COC_FN T smaller(T a, T b) {
    return a != a || a < b ? a : b;
}
#define ADD(a, b) ((a) + (b))
#define MUL(a, b) ((a) * (b))
#define MAX(a, b) larger(a, b)
#define MIN(a, b) smaller(a, b)

// order[0..count): the positions sorted by code. The first of those with equal codes combines them all.
KERNEL(combine, TYPE* whole, const TYPE* part, const i64* codes, const i64* places, const int* order, Rows rows,
       int count, unsigned n) {
    EACH_UNIT(i, n) {
        unsigned left = i;
        int j = 0;
        i64 to = rows.first_whole, from = rows.first_part;
        for (int axis = rows.axes - 1; axis >= 0; axis--) {
            const unsigned at = split_off(rows.lengths, axis, left);
            if (axis == rows.which) {
                j = (int)(rows.first_index + at);
            } else {
                to += at * rows.whole[axis];
                from += at * rows.part[axis];
            }
        }
        const i64 apart = rows.part[rows.which];
        int position = order[j];
        const i64 code = codes[position];
        if (j && codes[order[j - 1]] == code) continue;
        to += places[position] * rows.step;
        wide_t<TYPE> sum = widen(whole[to]);
        while (true) {
            const wide_t<TYPE> more = widen(part[from + position * apart]);
            sum = COMBINE(sum, more);
            if (++j == count) break;
            position = order[j];
            if (codes[position] != code) break;
        }
        whole[to] = narrow<TYPE>(sum);
    }
}
