// Places of elements that are not zero, and groups of equal elements in sorted rows. TYPE: that of elements.
#include "ordered.cuh"

KERNEL(mark, int* found, const TYPE* x, i64 n) {
    FOR_EACH(i, n) found[i] = widen(x[i]) != 0;
}

// heads[i]: 1 where an element differs from the one before; row `order[i]` of x [n, width] stands at i. NaN is equal to
// NaN where rows are single numbers that are compared as `numbers`.
KERNEL(mark_heads, int* heads, const TYPE* x, const int* order, i64 width, int numbers, i64 n) {
    FOR_EACH(i, n) {
        bool differs = i == 0;
        for (i64 k = 0; k < width && !differs; k++) {
            const TYPE a = x[order[i - (i > 0)] * width + k], b = x[order[i] * width + k];
            differs = numbers ? !Ordered<TYPE>::same(a, b) : widen(a) != widen(b);
        }
        heads[i] = differs;
    }
}

// keys[i]: a column of the rows of x [n, width] in an order.
KERNEL(column, TYPE* keys, const TYPE* x, const int* order, i64 width, i64 at, i64 n) {
    FOR_EACH(i, n) keys[i] = x[(order ? order[i] : i) * width + at];
}
