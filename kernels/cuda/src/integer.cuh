// The steps of docs/integer-arithmetic.md that all integer kernels share. Every operation rounds once: no fma.
#pragma once
// ROUND: half to even. ROUND_LOW: the same, right in the low 16 bits, of numbers between -2^22 and 2^22: beside 1.5 * 2^23
// a float has no bits for fractions.
#ifdef ROUND
#define ROUND_LOW ROUND
#else
#define ROUND __float2int_rn
#define ROUND_LOW(t) __float_as_uint(__fadd_rn(t, 12582912.f))
#endif

// What places of elements are computed with: INDEX is unsigned where all are below 2^31, since 64-bit divisions are slow.
#ifndef INDEX
#define INDEX i64
#endif

// Four neighbours, read and written at once.
template <class T>
struct alignas(4 * sizeof(T)) Four {
    T v[4];
};

// Clamp to [lo, hi], round half to even, add the zero point. NaN becomes lo.
COC_FN int rounded(float t, float lo, float hi, int z) {
    return (int)((unsigned)ROUND(fminf(fmaxf(t, lo), hi)) + (unsigned)z);
}

// acc -> output: t = fl32(acc + b) * M + B (+ (r - z_r) * ratio), clamped, rounded half to even, + z_y.
#ifndef SCALE_AND_SHIFT
#define SCALE_AND_SHIFT(t, M, B) __fadd_rn(__fmul_rn(t, M), B)
#endif
COC_FN float scaled(int acc, int b, float M, float B) {
    return SCALE_AND_SHIFT((float)(int)((unsigned)acc + (unsigned)b), M, B);
}
COC_FN float scaled(i64 acc, int b, float M, float B) { return SCALE_AND_SHIFT((float)(acc + b), M, B); }

struct Output {
    float ratio, lo, hi;
    int z_r, z_y, r_signed;
    // Residuals of 8 bits are read as u8, whatever their sign.
    COC_FN float with(float t, u8 r) const { return with(t, r_signed ? (int)(s8)r : (int)r); }
    COC_FN float with(float t, short r) const { return with(t, (int)r); }
    COC_FN float with(float t, int r) const { return __fadd_rn(t, __fmul_rn((float)(r - z_r), ratio)); }
    template <class Y>
    COC_FN Y of(float t) const {
        if constexpr ((float)(Y)0.5f == 0.5f)
            return t;  // a float result
        else
            return (Y)rounded(t, lo, hi, z_y);
    }
};
#define OUTPUT_PARAMETERS float ratio, float lo, float hi, int z_r, int z_y, int r_signed
#define OUTPUT Output{ratio, lo, hi, z_r, z_y, r_signed}

// A convolution of x [n, h, w, c of pitch] with windows [kh, kw]: y is [n, oh, ow, o of all groups].
struct Window {
    int h, w, pitch, oh, ow, kh, kw, sy, sx, py, px, dy, dx;
};
#define WINDOW_PARAMETERS \
    int h, int w, int pitch, int oh, int ow, int kh, int kw, int sy, int sx, int py, int px, int dy, int dx
#define WINDOW Window{h, w, pitch, oh, ow, kh, kw, sy, sx, py, px, dy, dx}
