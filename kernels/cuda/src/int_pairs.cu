// Sums, products, maxima and minima of two integer tensors. AT, RT, YT: types of elements; FUNCTION: one of those below;
// PRODUCT: the type of a product of two centred integers.
#include "integer.cuh"

struct Pair {
    float ra, rb, lo, hi;
    int z_a, z_r, z_y;
};
COC_FN float left(AT a, const Pair& p) { return __fmul_rn((float)((int)a - p.z_a), p.ra); }
COC_FN float right(RT r, const Pair& p) { return __fmul_rn((float)((int)r - p.z_r), p.rb); }
COC_FN float sum(AT a, RT r, const Pair& p) { return __fadd_rn(left(a, p), right(r, p)); }
COC_FN float larger(AT a, RT r, const Pair& p) { return fmaxf(left(a, p), right(r, p)); }
COC_FN float smaller(AT a, RT r, const Pair& p) { return fminf(left(a, p), right(r, p)); }
COC_FN float product(AT a, RT r, const Pair& p) {
    return __fmul_rn((float)((PRODUCT)((int)a - p.z_a) * (PRODUCT)((int)r - p.z_r)), p.ra);
}
COC_FN YT result(AT a, RT r, const Pair& p) { return (YT)rounded(FUNCTION(a, r, p), p.lo, p.hi, p.z_y); }

#define PAIR Pair{ra, rb, lo, hi, z_a, z_r, z_y}
#define PAIR_PARAMETERS const AT *a, const RT *r, YT *y, float ra, float rb, float lo, float hi, int z_a, int z_r, int z_y, i64 n

// Equal shapes, four elements a thread; all addresses are multiples of 16.
KERNEL(cuda_pair, PAIR_PARAMETERS) {
    const Pair p = PAIR;
    FOR_EACH(i, (n + 3) / 4) {
        if (i * 4 + 4 <= n) {
            const Four<AT> one = ((const Four<AT>*)a)[i];
            const Four<RT> other = ((const Four<RT>*)r)[i];
            Four<YT> to;
#pragma unroll
            for (int k = 0; k < 4; k++) to.v[k] = result(one.v[k], other.v[k], p);
            ((Four<YT>*)y)[i] = to;
        } else {
            for (i64 k = i * 4; k < n; k++) y[k] = result(a[k], r[k], p);
        }
    }
}

// Operands that broadcast: walk holds, for each axis, the innermost first, its length and the steps of a and r along it.
KERNEL(cuda_pair_along, PAIR_PARAMETERS, const i64* walk, int axes) {
    const Pair p = PAIR;
    FOR_EACH(i, n) {
        INDEX rest = (INDEX)i, at_a = 0, at_r = 0;
        for (int k = 0; k < axes; k++) {
            INDEX place = rest;
            if (k + 1 < axes) {
                rest /= (INDEX)walk[3 * k];
                place -= rest * (INDEX)walk[3 * k];
            }
            at_a += place * (INDEX)walk[3 * k + 1];
            at_r += place * (INDEX)walk[3 * k + 2];
        }
        y[i] = result(a[at_a], r[at_r], p);
    }
}
