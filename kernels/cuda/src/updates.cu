// Many arrays in one launch. `table` holds a row of addresses for each array; `chunks` holds, for each block, the number
// of its array, the first element and how many there are.
//   cuda_update   an optimizer's rule: RULE is its number, ROW (w, gradient, result, first state, second state)
//   cuda_sizes    sums of squares (MODE 0), of powers (1), or the largest size (2), of each chunk; ROW is (x)
//   cuda_joined   from those of chunks those of arrays
//   cuda_limited  elements times what limits a norm; ROW (x, result)
//   cuda_unscaled elements times a factor, and whether all are finite; ROW (x, result)
//   cuda_copied   bytes as they are; ROW (x, result)
//   cuda_adapted  w - rate * direction, rate scaled by the ratio of their norms; ROW (w, direction, result)
#include "elementwise.cuh"

#ifndef RULE
#define RULE 0
#endif
#ifndef MODE
#define MODE 0
#endif
#ifndef TYPE
#define TYPE float
#endif

struct Chunk {
    i64 array, first, length;
};
COC_FN Chunk chunk_of(const i64* chunks) {
    const i64* c = chunks + 3 * (i64)blockIdx.x;
    return {c[0], c[1], c[2]};
}

// ---------------------------------------------------------------- the rules, with the operations of csrc/updates

struct Scalars {
    float decay, c0, c1, c2, c3, c4, c5, c6, c7;
};

// factor * m / (sqrt(v) * root factor + eps), with the updated moments.
COC_FN float moments(const Scalars& s, float g, float& m, float& v) {
    m = m * s.c0 + s.c1 * g;
    v = v * s.c2 + g * g * s.c3;
    return m / (sqrtf(v) * s.c4 + s.c5) * s.c6;
}

// The new value of w; a and b are states.
COC_FN float updated(const Scalars& s, float w, float g, float& a, float& b) {
    if (s.decay != 0.f) g = g + s.decay * w;
    if constexpr (RULE == 0) return w - s.c0 * g;
    if constexpr (RULE == 1 || RULE == 2) {
        a = a * s.c1 + g;
        return RULE == 2 ? w - s.c0 * (g + s.c1 * a) : w - s.c0 * a;
    }
    if constexpr (RULE == 3) return w * s.c7 - moments(s, g, a, b);
    if constexpr (RULE == 4) {
        const float ratio = moments(s, g, a, b);
        return s.c7 != 0.f ? ratio + s.c7 * w : ratio;
    }
    if constexpr (RULE == 5) {
        a = a + g * g;
        return w - s.c0 * g / sqrtf(a + s.c1);
    }
    a = a * s.c1 + s.c2 * g * g;
    const float delta = sqrtf(b + s.c3) / sqrtf(a + s.c3) * g;
    b = b * s.c1 + s.c2 * delta * delta;
    return w - s.c0 * delta;
}

constexpr int kStates = RULE == 0 ? 0 : RULE == 1 || RULE == 2 || RULE == 5 ? 1 : 2;

template <int N>
COC_FN void update_at(const Scalars& s, const i64* row, i64 at) {
    Pack<float, N> w, g, a, b, out;
    w.load((const float*)row[0] + at);
    g.load((const float*)row[1] + at);
    if (kStates > 0) a.load((const float*)row[3] + at); else a.fill(0.f);
    if (kStates > 1) b.load((const float*)row[4] + at); else b.fill(0.f);
#pragma unroll
    for (int k = 0; k < N; ++k) out.v[k] = updated(s, w.v[k], g.v[k], a.v[k], b.v[k]);
    out.store((float*)row[2] + at);
    if (kStates > 0) a.store((float*)row[3] + at);
    if (kStates > 1) b.store((float*)row[4] + at);
}

// `late`: where the scalars lie in a recording, whose replays have scalars of their own; null where they are arguments.
KERNEL(cuda_update, const i64* table, const i64* chunks, const void* late, float decay, float c0, float c1, float c2,
       float c3, float c4, float c5, float c6, float c7) {
    Scalars s = {decay, c0, c1, c2, c3, c4, c5, c6, c7};
    if (late) s = *(const Scalars*)late;
    const Chunk c = chunk_of(chunks);
    const i64* row = table + 5 * c.array;
    const bool wide = ((row[0] | row[1] | row[2] | row[3] | row[4]) & 15) == 0;  // chunks begin at multiples of 4
    const i64 packs = wide ? c.length / 4 : 0;
    for (i64 j = threadIdx.x; j < packs; j += blockDim.x) update_at<4>(s, row, c.first + 4 * j);
    for (i64 i = 4 * packs + threadIdx.x; i < c.length; i += blockDim.x) update_at<1>(s, row, c.first + i);
}

// ---------------------------------------------------------------- norms

COC_FN double joined(double a, double b) { return MODE == 2 ? (a >= b || a != a ? a : b) : a + b; }

// The value of all 256 threads of a block together, in a fixed order.
template <class S>
COC_FN double of_block(S& part, double mine) {
    part[threadIdx.x] = mine;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if ((int)threadIdx.x < half) part[threadIdx.x] = joined(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    return part[0];
}

KERNEL_BOUNDS(cuda_sizes, 256, const i64* table, const i64* chunks, double power, double* out) {
    SHARED(double, part, 256);
    const Chunk c = chunk_of(chunks);
    const TYPE* x = (const TYPE*)table[c.array] + c.first;
    double mine = 0.;
    for (i64 i = threadIdx.x; i < c.length; i += blockDim.x) {
        const double v = (double)widen(x[i]);
        mine = joined(mine, MODE == 0 ? v * v : MODE == 1 ? pow(fabs(v), power) : fabs(v));
    }
    const double whole = of_block(part, mine);
    if (threadIdx.x == 0) out[blockIdx.x] = whole;
}

// Block k joins the chunks from begins[k] to begins[k + 1]; `norm` is the result as float, where there is one array.
KERNEL_BOUNDS(cuda_joined, 256, const double* of_chunks, const i64* begins, double power, double* out, float* norm) {
    SHARED(double, part, 256);
    double mine = 0.;
    for (i64 i = begins[blockIdx.x] + threadIdx.x; i < begins[blockIdx.x + 1]; i += blockDim.x)
        mine = joined(mine, of_chunks[i]);
    const double whole = of_block(part, mine);
    if (threadIdx.x != 0) return;
    const double size = MODE == 0 ? sqrt(whole) : MODE == 1 ? pow(whole, 1. / power) : whole;
    out[blockIdx.x] = size;
    if (norm) norm[0] = (float)size;
}

// ---------------------------------------------------------------- changes of gradients

KERNEL(cuda_limited, const i64* table, const i64* chunks, const double* norm, double most) {
    const Chunk c = chunk_of(chunks);
    const i64* row = table + 2 * c.array;
    const TYPE* x = (const TYPE*)row[0] + c.first;
    TYPE* out = (TYPE*)row[1] + c.first;
    const float factor = norm[0] > most ? (float)(most / (norm[0] + 1e-6)) : 1.f;
    for (i64 i = threadIdx.x; i < c.length; i += blockDim.x) out[i] = narrow<TYPE>(widen(x[i]) * factor);
}

KERNEL(cuda_unscaled, const i64* table, const i64* chunks, double factor, int* not_finite) {
    const Chunk c = chunk_of(chunks);
    const i64* row = table + 2 * c.array;
    const TYPE* x = (const TYPE*)row[0] + c.first;
    TYPE* out = (TYPE*)row[1] + c.first;
    bool bad = false;
    for (i64 i = threadIdx.x; i < c.length; i += blockDim.x) {
        const auto v = widen(x[i]);
        bad |= !(v - v == 0);
        out[i] = narrow<TYPE>(v * (wide_t<TYPE>)factor);
    }
    if (bad) atomicOr(not_finite, 1);
}

KERNEL(cuda_adapted, const i64* table, const i64* chunks, const double* of_w, const double* of_direction, double rate,
       int adapts) {
    const Chunk c = chunk_of(chunks);
    const i64* row = table + 3 * c.array;
    const float *w = (const float*)row[0] + c.first, *d = (const float*)row[1] + c.first;
    float* out = (float*)row[2] + c.first;
    const float a = (float)of_w[c.array], b = (float)of_direction[c.array];
    const float factor = (float)(adapts && a > 0.f && b > 0.f ? rate * (double)(a / b) : rate);
    for (i64 i = threadIdx.x; i < c.length; i += blockDim.x) out[i] = w[i] - d[i] * factor;
}

// Bytes of arrays to others, in chunks of bytes: all addresses are those of 16 bytes.
KERNEL(cuda_copied, const i64* table, const i64* chunks) {
    const Chunk c = chunk_of(chunks);
    const i64* row = table + 2 * c.array;
    const u8* x = (const u8*)row[0] + c.first;
    u8* out = (u8*)row[1] + c.first;
    const i64 packs = c.length / 16;
    for (i64 i = threadIdx.x; i < packs; i += blockDim.x) ((int4*)out)[i] = ((const int4*)x)[i];
    for (i64 i = packs * 16 + threadIdx.x; i < c.length; i += blockDim.x) out[i] = x[i];
}
