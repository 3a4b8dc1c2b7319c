// Rows combined with what stands at their places, several for one place in their order. TYPE: that of elements;
// PACK of them are a unit.
#define SIZE 4
#include "units.cuh"

#define AT_ONCE 4
enum { ADD, MUL, MAX, MIN };
template <int HOW, class T>
COC_FN T combined(T a, T b) {
    if (HOW == ADD) return a + b;
    if (HOW == MUL) return a * b;
    if (HOW == MAX) return a != a || a > b ? a : b;  // a NaN stays
    return a != a || a < b ? a : b;
}

// order[0..count): the positions sorted by code. The first of those with equal codes combines them all.
struct alignas(sizeof(TYPE) * PACK) Pack {
    TYPE of[PACK];
};
template <int HOW>
COC_FN void combine(Pack* whole, const Pack* part, const i64* codes, const i64* places, const int* order,
                    const Rows& rows, int count, unsigned n) {
    EACH_UNIT(i, n) {
        unsigned left = i;
        int j = 0;
        const i64 apart = rows.part[rows.which];
        i64 to = rows.first_whole, from = rows.first_part - rows.first_index * apart;
        for (int axis = rows.axes - 1; axis >= 0; axis--) {
            const unsigned at = split_off(rows.lengths, axis, left);
            if (axis == rows.which) {
                j = (int)(rows.first_index + at);
            } else {
                to += at * rows.whole[axis];
                from += at * rows.part[axis];
            }
        }
        int position = order[j];
        const i64 code = codes[position];
        if (j && codes[order[j - 1]] == code) continue;
        to += places[position] * rows.step;
        Pack result = whole[to];
        wide_t<TYPE> sum[PACK];
#pragma unroll
        for (int e = 0; e < PACK; e++) sum[e] = widen(result.of[e]);
        for (bool more = true; more; j += AT_ONCE) {  // several at once: their loads wait together
            bool same[AT_ONCE];
            Pack next[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                position = j + k < count ? order[j + k] : -1;
                same[k] = position >= 0 && codes[position] == code;
                if (same[k]) next[k] = part[from + position * apart];
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (same[k])
#pragma unroll
                    for (int e = 0; e < PACK; e++) sum[e] = combined<HOW>(sum[e], widen(next[k].of[e]));
            more = same[AT_ONCE - 1];
        }
#pragma unroll
        for (int e = 0; e < PACK; e++) result.of[e] = narrow<TYPE>(sum[e]);
        whole[to] = result;
    }
}
#define COMBINE(name, HOW)                                                                                            \
    KERNEL(name, void* whole, const void* part, const i64* codes, const i64* places, const int* order, Rows rows,     \
           int count, unsigned n) {                                                                                   \
        combine<HOW>((Pack*)whole, (const Pack*)part, codes, places, order, rows, count, n);                          \
    }
COMBINE(combine_add, ADD)
COMBINE(combine_mul, MUL)
COMBINE(combine_max, MAX)
COMBINE(combine_min, MIN)
