// Elementwise conversions between real numbers and integers. XT, YT: types of elements of x and y; FUNCTION: one of those
// below. Scales stand for all elements, or along an axis: count of them, each for `inner` neighbours.
#include "integer.cuh"

struct Conversion {
    float s, factor;  // the scale; what MegEngine's rounding multiplies by; the ratio of two scales
    int lo, hi, z_x, z_y;
};

template <class Y, class X>
COC_FN Y quantize(X x, const Conversion& c) {
    return (Y)rounded(__fdiv_rn(x, c.s), (float)c.lo, (float)c.hi, c.z_y);
}
template <class Y, class X>
COC_FN Y dequantize(X x, const Conversion& c) {
    return __fmul_rn((float)((int)x - c.z_x), c.s);
}
template <class Y, class X>
COC_FN Y fake_quant(X x, const Conversion& c) {
    return __fmul_rn((float)rounded(__fdiv_rn(x, c.s), (float)c.lo, (float)c.hi, 0), c.s);
}
template <class Y, class X>
COC_FN Y requantize(X x, const Conversion& c) {
    return (Y)rounded(__fmul_rn((float)((int)x - c.z_x), c.factor), (float)c.lo, (float)c.hi, c.z_y);
}

// Ties away from zero: trunc(t + copysign(0.5, t)). Clamped in double, which holds the ends of 32 bits too.
COC_FN int away(float t, const Conversion& c) {
    const double whole = truncf(__fadd_rn(t, copysignf(0.5f, t)));
    return (int)fmin(fmax(whole, (double)c.lo), (double)c.hi);
}
template <class Y, class X>
COC_FN Y quantize_away(X x, const Conversion& c) {
    return (Y)(away(__fmul_rn(x, c.factor), c) + c.z_y);
}
template <class Y, class X>
COC_FN Y integer_away(X x, const Conversion& c) {
    return (Y)(away(__fmul_rn((float)((int)x - c.z_x), c.factor), c) + c.z_y);
}
template <class Y, class X>
COC_FN Y fake_quant_away(X x, const Conversion& c) {
    return __fmul_rn((float)away(__fmul_rn(x, c.factor), c), c.s);
}

#define CONVERSION Conversion{s, factor, lo, hi, z_x, z_y}
// Four elements a thread; both addresses are multiples of 16.
KERNEL(cuda_convert, const XT* x, YT* y, float s, float factor, int lo, int hi, int z_x, int z_y, i64 n) {
    const Conversion c = CONVERSION;
    FOR_EACH(i, (n + 3) / 4) {
        if (i * 4 + 4 <= n) {
            const Four<XT> from = ((const Four<XT>*)x)[i];
            Four<YT> to;
#pragma unroll
            for (int k = 0; k < 4; k++) to.v[k] = FUNCTION<YT>(from.v[k], c);
            ((Four<YT>*)y)[i] = to;
        } else {
            for (i64 k = i * 4; k < n; k++) y[k] = FUNCTION<YT>(x[k], c);
        }
    }
}

KERNEL(cuda_convert_one, const XT* x, YT* y, float s, float factor, int lo, int hi, int z_x, int z_y, i64 n) {
    const Conversion c = CONVERSION;
    FOR_EACH(i, n) y[i] = FUNCTION<YT>(x[i], c);
}

KERNEL(cuda_convert_along, const XT* x, YT* y, const float* scales, const float* factors, int lo, int hi, int z_x, int z_y,
       i64 inner, i64 count, i64 n) {
    FOR_EACH(i, n) {
        const INDEX at = (INDEX)i / (INDEX)inner % (INDEX)count;
        const float s = scales[at], factor = factors[at];
        y[i] = FUNCTION<YT>(x[i], CONVERSION);
    }
}
