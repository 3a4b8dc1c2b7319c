// Classes as rows of 0 and 1. TYPE: that of the classes; WIDE: a signed type that holds them, long long or double.
#include "dividing.cuh"

KERNEL(one_hot, int* out, const TYPE* x, int depth, int* refused, i64 n) {
    FOR_EACH(i, n) {
        i64 row = i;
        const unsigned at = split_off(row, depth);
        const WIDE given = (WIDE)x[row];
        if (at == 0 && (given < 0 || given >= depth)) {
            const WIDE size = given < 0 ? -given : given;
            const int most = (1 << 30) - 1;
            atomicMax(refused, (given < 0 ? 0 : 1 << 30) + (size >= 0 && size < most ? (int)size : most));
        }
        out[i] = given == (WIDE)at;
    }
}
