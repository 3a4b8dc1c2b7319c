// What kernels are written with: the same text is compiled by NVRTC for GPUs and, in tests, by a C++ compiler that runs
// it thread by thread on a CPU (tests/helpers/cuda_on_cpu). Beside CUDA's own names a kernel may use:
//
//   KERNEL(name, parameters...), KERNEL_BOUNDS(name, threads, parameters...)    a kernel, with its most threads a block
//   KERNEL_BLOCKS(name, threads, blocks, parameters...)    the same, with so many blocks at once on a multiprocessor
//   SHARED(T, name, count), SHARED_DYNAMIC(T, name)    one-dimensional shared arrays, whose use tests check
//   wide_load<W>(tile, i), wide_store(tile, i, w)    several elements of a shared array at once, aligned
//   cp_async16(tile, i, src), cp_async_commit(), cp_async_wait<N>()    16 bytes to shared memory; there after the wait
//   cp_async<BYTES>(tile, i, src)    the same for 4, 8 or 16 bytes
//   cp_async16_part(tile, i, src, n)    the first n of 16 bytes, and zeros behind them
//   ldmatrix_x4(r, tile, i)    four matrices of eight rows of 16 bytes: lane l gives row l % 8 of matrix l / 8, and gets in
//     r[m] the word l % 4 of row l / 4 of matrix m
//   ldmatrix_x4_turned(r, tile, i)    the same of 8 x 8 numbers of 2 bytes, turned: numbers 2 (l % 4) and 2 (l % 4) + 1 of
//     column l / 4 of matrix m
//   dot4<T>(x, w, d)    d + four products; x holds four T (u8 or s8), w four s8
//   mma_16x8x32<T, U>(d, a, b)    d[16 x 8] += a[16 x 32] * b[32 x 8] by one warp; T, of a, and U, of b, are u8 or s8; U is
//     s8 where it is not said. g = lane / 4, t = lane % 4, four numbers a word along k: a (row, k): (g, 4t) (g + 8, 4t)
//     (g, 4t + 16) (g + 8, 4t + 16); b (k, col): (4t, g) (4t + 16, g); d: (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
//   mma_16x8x16<T>(d, a, b)    the same for T = f16 or bf16, two a word, sums in float32: 2t for 4t, and 8 for 16
//   mma_16x8x8(d, a, b)    the same for floats, one a word, of which 10 bits behind the point are read: t for 4t, 4 for 16
//
// Every pointer is to a dense array in C order. Numbers of half precision are stored as f16 and bf16, computed with as
// floats: widen(v) reads one, narrow<T>(v) rounds a result once, to the nearest, ties to even.
#pragma once
#ifdef __CUDACC__
typedef unsigned char u8;
typedef signed char s8;
#define COC_FN __device__ __forceinline__
#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define KERNEL_BOUNDS(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads) name(__VA_ARGS__)
#define KERNEL_BLOCKS(name, threads, blocks, ...) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(__VA_ARGS__)
#define SHARED(T, name, count) __shared__ __align__(16) T name[count]
#define SHARED_DYNAMIC(T, name)                                      \
    extern __shared__ __align__(16) unsigned char coc_dynamic[]; \
    T* name = (T*)coc_dynamic
struct f16 {
    unsigned short x;
};
struct bf16 {
    unsigned short x;
};
COC_FN float widen(f16 v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.x));
    return f;
}
COC_FN f16 half_of(float v) {
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.x) : "f"(v));
    return h;
}
template <class W, class S>
COC_FN W wide_load(const S& tile, int i) {
    return *reinterpret_cast<const W*>(&tile[i]);
}
template <class W, class S>
COC_FN void wide_store(S& tile, int i, W value) {
    *reinterpret_cast<W*>(&tile[i]) = value;
}
template <class T>
COC_FN int dot4(unsigned x, unsigned w, int d) {
    if ((T)-1 < (T)0)
        asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(d) : "r"(x), "r"(w));
    else
        asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(d) : "r"(x), "r"(w));
    return d;
}
template <class S>
COC_FN void ldmatrix_x4(unsigned (&r)[4], const S& tile, int i) {
    const unsigned src = (unsigned)__cvta_generic_to_shared(&tile[i]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(src)
                 : "memory");
}
template <class S>
COC_FN void ldmatrix_x4_turned(unsigned (&r)[4], S& tile, int i) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(&tile[i]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
#if __CUDA_ARCH__ >= 800
template <class S>
COC_FN void cp_async16(S& tile, int i, const void* src) {
    const unsigned dst = (unsigned)__cvta_generic_to_shared(&tile[i]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
template <int BYTES, class S>
COC_FN void cp_async(S& tile, int i, const void* src) {
    const unsigned dst = (unsigned)__cvta_generic_to_shared(&tile[i]);
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(BYTES) : "memory");
}
template <class S>
COC_FN void cp_async16_part(S& tile, int i, const void* src, int bytes) {
    const unsigned dst = (unsigned)__cvta_generic_to_shared(&tile[i]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
COC_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
COC_FN void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#define COC_MMA(shape_and_types, c)                                                                              \
    asm("mma.sync.aligned." shape_and_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"             \
        : c(d[0]), c(d[1]), c(d[2]), c(d[3])                                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <class T, class U = s8>
COC_FN void mma_16x8x32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr ((U)-1 < (U)0) {
        if constexpr ((T)-1 < (T)0)
            COC_MMA("m16n8k32.row.col.s32.s8.s8.s32", "+r");
        else
            COC_MMA("m16n8k32.row.col.s32.u8.s8.s32", "+r");
    } else {
        if constexpr ((T)-1 < (T)0)
            COC_MMA("m16n8k32.row.col.s32.s8.u8.s32", "+r");
        else
            COC_MMA("m16n8k32.row.col.s32.u8.u8.s32", "+r");
    }
}
template <class T>
struct IsBf16 {
    static constexpr bool value = false;
};
template <>
struct IsBf16<bf16> {
    static constexpr bool value = true;
};
template <class T>
COC_FN void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (IsBf16<T>::value)
        COC_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "+f");
    else
        COC_MMA("m16n8k16.row.col.f32.f16.f16.f32", "+f");
}
COC_FN void mma_16x8x8(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    COC_MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "+f");
}
#else  // kernels that call mma are not launched before sm_80; copies are plain ones
template <class S>
COC_FN void cp_async16(S& tile, int i, const void* src) {
    wide_store(tile, i, *reinterpret_cast<const int4*>(src));
}
template <class S>
COC_FN void cp_async16_part(S&, int, const void*, int) {
    __trap();
}
template <int BYTES, class S>
COC_FN void cp_async(S& tile, int i, const void* src) {
    if constexpr (BYTES == 16)
        wide_store(tile, i, *reinterpret_cast<const int4*>(src));
    else if constexpr (BYTES == 8)
        wide_store(tile, i, *reinterpret_cast<const int2*>(src));
    else
        wide_store(tile, i, *reinterpret_cast<const int*>(src));
}
COC_FN void cp_async_commit() {}
template <int N>
COC_FN void cp_async_wait() {}
template <class T, class U = s8>
COC_FN void mma_16x8x32(int (&)[4], const unsigned (&)[4], const unsigned (&)[2]) {
    __trap();
}
template <class T>
COC_FN void mma_16x8x16(float (&)[4], const unsigned (&)[4], const unsigned (&)[2]) {
    __trap();
}
COC_FN void mma_16x8x8(float (&)[4], const unsigned (&)[4], const unsigned (&)[2]) { __trap(); }
#endif
#else
#define COC_FN inline
#include "cuda_on_cpu.h"
#endif

// ---- what both have
COC_FN float widen(bf16 v) { return __uint_as_float((unsigned)v.x << 16); }
COC_FN bf16 brain_of(float v) {
    const unsigned x = __float_as_uint(v);
    return {(unsigned short)((x & 0x7fffffff) > 0x7f800000 ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16)};
}
template <class T>
COC_FN T widen(T v) {
    return v;
}

// The type that numbers of T are computed with.
template <class T>
struct Wide {
    using type = T;
};
template <>
struct Wide<f16> {
    using type = float;
};
template <>
struct Wide<bf16> {
    using type = float;
};
template <class T>
using wide_t = typename Wide<T>::type;

template <class T>
struct Narrow {
    template <class W>
    static COC_FN T of(W v) {
        return (T)v;
    }
};
template <>
struct Narrow<f16> {
    template <class W>
    static COC_FN f16 of(W v) {
        return half_of((float)v);
    }
};
template <>
struct Narrow<bf16> {
    template <class W>
    static COC_FN bf16 of(W v) {
        return brain_of((float)v);
    }
};
template <class T, class W>
COC_FN T narrow(W v) {
    return Narrow<T>::of(v);
}

typedef long long i64;
// Every element of [0, n), by all threads of a one-dimensional grid.
#define FOR_EACH(i, n)                                                                     \
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, i##_step = (i64)gridDim.x * blockDim.x; i < (n); \
         i += i##_step)
