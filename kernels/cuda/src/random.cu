// Random numbers that are functions of a key and of their place: those of kernels/reference/philox.py. A thread makes
// four; word j of counter l of a chunk of 64 counters is element 64 j + l of its 256. KIND: 0 uniform in [0, 1),
// 1 standard normal, both times a scale plus a shift; 2 factors of a dropout: `scale` where a uniform number is at
// least `shift`, else 0.
#include "elementwise.cuh"

#ifndef KIND
#define KIND 0
#endif
#ifndef TYPE
#define TYPE float
#endif

struct Four {
    unsigned x, y, z, w;
};

// Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011).
COC_FN Four philox(u64 key, u64 counter) {
    Four c = {(unsigned)counter, (unsigned)(counter >> 32), 0, 0};
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 a = (u64)0xD2511F53u * c.x, b = (u64)0xCD9E8D57u * c.z;
        c = {(unsigned)(b >> 32) ^ c.y ^ k0, (unsigned)b, (unsigned)(a >> 32) ^ c.w ^ k1, (unsigned)a};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

COC_FN float uniform(unsigned x) { return (float)(x >> 8) * 0x1p-24f; }

// sqrt(-2 ln u), u = (x + 1/2) / 2^32.
COC_FN float radius(unsigned x) {
    const float u = (float)x * 0x1p-32f + 0x1p-33f;
    const unsigned bits = (unsigned)bits_of(u);
    const int e = (int)(bits - 0x3F3504F3u) >> 23;
    const float m = float_of((int)(bits - ((unsigned)e << 23)));
    const float s = (m - 1.f) / (m + 1.f), q = s * s;
    float p = q * (1.f / 9.f) + 1.f / 7.f;
    p = p * q + 1.f / 5.f;
    p = p * q + 1.f / 3.f;
    p = p * q + 1.f;
    const float ln = (float)e * 0.693147181f + 2.f * s * p;
    return sqrtf(-2.f * ln);
}

// r (cos, sin) of an angle uniform over the circle.
COC_FN void spread(float r, unsigned x, float& first, float& second) {
    const float a = (float)((int)(x & 0x3FFFFFFFu) - 0x20000000) * 1.46291808e-9f, q = a * a;
    float sine = q * (1.f / 362880.f) - 1.f / 5040.f;
    sine = sine * q + 1.f / 120.f;
    sine = sine * q - 1.f / 6.f;
    sine = (sine * q + 1.f) * a;
    float cosine = q * (1.f / 40320.f) - 1.f / 720.f;
    cosine = cosine * q + 1.f / 24.f;
    cosine = cosine * q - 0.5f;
    cosine = cosine * q + 1.f;
    const float h = r * 0.707106781f;
    first = float_of(bits_of((cosine - sine) * h) ^ (int)(x & 0x80000000u));
    second = float_of(bits_of((cosine + sine) * h) ^ (int)(x << 1 & 0x80000000u));
}

COC_FN void put(TYPE* out, i64 at, i64 n, float v, float scale, float shift) {
    if (at >= n) return;
    out[at] = narrow<TYPE>(KIND == 2 ? (v >= shift ? scale : 0.f) : v * scale + shift);
}

// The key is an argument, or, in a recording whose replays have keys of their own, in a cell.
KERNEL(cuda_random, TYPE* out, i64 n, const i64* cell, i64 key, float scale, float shift) {
    const u64 own = (u64)(cell ? cell[0] : key);
    const i64 counters = (n + 255) / 256 * 64;
    FOR_EACH(l, counters) {
        const Four c = philox(own, (u64)l);
        const i64 at = l / 64 * 256 + l % 64;
        float v0 = uniform(c.x), v1 = uniform(c.y), v2 = uniform(c.z), v3 = uniform(c.w);
        if (KIND == 1) {
            spread(radius(c.x), c.y, v0, v1);
            spread(radius(c.z), c.w, v2, v3);
        }
        put(out, at, n, v0, scale, shift);
        put(out, at + 64, n, v1, scale, shift);
        put(out, at + 128, n, v2, scale, shift);
        put(out, at + 192, n, v3, scale, shift);
    }
}
