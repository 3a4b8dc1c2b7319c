// Sums along one axis: out [outer, rows, inner] from x [outer, length, inner]. Row r sums the entries starts[r] ..
// starts[r + 1] in their order: x at index, times weight. TYPE: that of everything.
#include "dividing.cuh"

KERNEL(sum_entries, TYPE* out, const TYPE* x, const int* starts, const int* index, const TYPE* weight, int rows,
       i64 length, i64 inner, i64 n) {
    FOR_EACH(i, n) {
        i64 outer = i;
        const i64 column = split_off(outer, (unsigned)inner);
        const unsigned row = split_off(outer, rows);
        const TYPE* own = x + outer * length * inner + column;
        TYPE sum = 0;
        for (int e = starts[row]; e < starts[row + 1]; e++) sum = sum + own[index[e] * inner] * weight[e];
        out[i] = sum;
    }
}
