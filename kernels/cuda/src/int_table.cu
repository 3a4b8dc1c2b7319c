// y = table[x - the smallest integer that x can be]. XT, YT: types of elements.
// With count > 1 tables, each stands for `inner` neighbours of x, one after the other.
#include "integer.cuh"

KERNEL(cuda_table, const XT* x, const YT* table, YT* y, int least, int codes, i64 inner, i64 count, i64 n) {
    if (count == 1) {
        FOR_EACH(i, n) y[i] = __ldg(table + ((int)x[i] - least));
    } else {
        FOR_EACH(i, n) y[i] = __ldg(table + ((i64)((INDEX)i / (INDEX)inner % (INDEX)count) * codes + ((int)x[i] - least)));
    }
}
