// Runs CUDA kernels on a CPU, thread by thread, as a slow and strict GPU: gcc or clang, C++17.
//
// A kernel file is included inside an anonymous namespace, in one translation unit for each shared library; portable.cuh
// includes this file where no CUDA compiler reads it. What takes long to compile stands in cuda_on_cpu.cpp, compiled once
// and linked with each. A launch reports, with block, thread and line: an index outside a shared array, shared memory that
// is read before it is written, races on it in any order of threads, divergent barriers, data of cp_async16 used before the
// wait, accesses one element outside a global array, misaligned vectors, endless loops, and arguments of a wrong number or
// type.
#pragma once
typedef unsigned char u8;
typedef signed char s8;
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static __attribute__((section("coc_shared")))  // poisoned for every block; no other checks
#define __restrict__ __restrict
#define KERNEL_BOUNDS(name, threads, ...) static void name(__VA_ARGS__); \
    static const bool coc_added_##name = coc::add(#name, threads, &name); static void name(__VA_ARGS__)
#define KERNEL_BLOCKS(name, threads, blocks, ...) KERNEL_BOUNDS(name, threads, __VA_ARGS__)
#define KERNEL(name, ...) KERNEL_BOUNDS(name, 1024, __VA_ARGS__)
#define SHARED(T, name, count) static char coc_key_##name; coc::Shared<T> name{&coc::region(&coc_key_##name, #name, sizeof(T), count)}
#define SHARED_DYNAMIC(T, name) coc::Shared<T> name{&coc::region(nullptr, #name, sizeof(T), coc::dynamic_bytes / sizeof(T))}
#define threadIdx (coc::self->index)
#define blockIdx (coc::block_index)
#define blockDim (coc::block_dim)
#define gridDim (coc::grid_dim)
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
#define COC_VECTOR(T, name) struct alignas(2 * sizeof(T)) name##2 { T x, y; }; struct alignas(4 * sizeof(T)) name##4 { T x, y, z, w; }; \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
COC_VECTOR(float, float) COC_VECTOR(int, int) COC_VECTOR(unsigned, uint) COC_VECTOR(s8, char) COC_VECTOR(u8, uchar)

#pragma GCC visibility push(hidden)
namespace coc {
enum State { ready, at_barrier, at_warp, done };
struct Fiber {  // one CUDA thread, as far as kernels see it
    uint3 index;
    unsigned id, mask, warp_syncs;
    State state;
    int line;
    const char* what;
    void* data;
};
extern Fiber* self;
extern dim3 block_index, block_dim, grid_dim;
extern size_t dynamic_bytes;
void leave();
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);
// A call that all lanes of `mask` take part in; the last one acts for everybody, on the data of each.
void collective(unsigned mask, const char* what, int line, void* data, void (*act)(void**, unsigned));

// ---- shared memory: bounds, reads of what nobody wrote, and races, element by element
struct At {  // an index that knows the line it stands in
    long i;
    int line;
    template <class I> At(I index, int where = __builtin_LINE()) : i(long(index)), line(where) {}
};
struct Shadow;
struct Region {
    const char* name;
    size_t size, count, serial;
    char* memory;
    Shadow* shadow;
    Shadow& at(long i, int line);
    void race(long i, int line, const char* now, const char* before, unsigned other);
    void read(long i, int line);
    void write(long i, int line);
    void change(long i, int line);                     // by an atomic operation
    char* span(At at, size_t bytes, bool write);       // checks a wide access
    void copy_later(At at, const void* src, size_t bytes, size_t given);  // cp.async
};
Region& region(const void* key, const char* name, size_t size, size_t count);  // key null: dynamic
template <class T> struct Ref {
    Region* r; long i; int line;
    T& raw() const { return reinterpret_cast<T*>(r->memory)[i]; }
    operator T() const { return r->read(i, line), raw(); }
    T operator=(T v) const { return r->write(i, line), raw() = v; }
    T operator=(const Ref& o) const { return *this = T(o); }
    T operator+=(T v) const { return *this = T(T(*this) + v); }
    T operator*=(T v) const { return *this = T(T(*this) * v); }
    Ref operator&() const { return *this; }  // for atomics
};
template <class T> struct Shared {
    Region* r;
    Ref<T> operator[](At at) const { return {r, at.i, at.line}; }
};
template <class T> T& slot(T* p) { return *p; }
template <class T> T& slot(Ref<T> s) { return s.r->change(s.i, s.line), s.raw(); }
void commit_copies();
void sync_copies(size_t keep);  // the copies of all but the `keep` youngest groups arrive

// ---- kernels of a library, by their names
struct Kind { char letter; unsigned pointers, size; };
template <class T> constexpr Kind kind() {  // as NumPy says it, behind a P for each pointer
    if constexpr (std::is_pointer_v<T>) {
        constexpr Kind to = kind<std::remove_cv_t<std::remove_pointer_t<T>>>();
        return {to.letter, to.pointers + 1, to.size};
    } else return {std::is_floating_point_v<T> ? 'f' : !std::is_integral_v<T> ? 'V' : std::is_signed_v<T> ? 'i' : 'u', 0, sizeof(T)};
}
bool enter_kernel(const char* name, unsigned most, void* fn, void (*call)(void*, void**), const Kind* kinds, size_t count);
template <class... A, size_t... I> void call_with(void (*f)(A...), void** a, std::index_sequence<I...>) {
    f(*static_cast<std::remove_cv_t<A>*>(a[I])...);
}
template <class... A> bool add(const char* name, unsigned most, void (*f)(A...)) {
    const Kind kinds[] = {kind<std::remove_cv_t<A>>()..., Kind{}};
    auto call = [](void* fn, void** a) { call_with(reinterpret_cast<void (*)(A...)>(fn), a, std::index_sequence_for<A...>{}); };
    return enter_kernel(name, most, reinterpret_cast<void*>(f), call, kinds, sizeof...(A));
}
template <class T> struct Shuffle { T v; int from; };
template <class T> T shuffled(unsigned mask, T v, int from, const char* what, int line) {
    Shuffle<T> mine = {v, from};
    collective(mask, what, line, &mine, [](void** lanes, unsigned m) {
        T before[32];
        for (int l = 0; l < 32; l++) if (lanes[l]) before[l] = static_cast<Shuffle<T>*>(lanes[l])->v;
        for (int l = 0; l < 32; l++) {
            if (!lanes[l]) continue;
            auto& one = *static_cast<Shuffle<T>*>(lanes[l]);
            if (!(m >> one.from & 1)) fail("shuffle: lane %d asks lane %d, which mask %08x does not name", l, one.from, m);
            one.v = before[one.from];
        }
    });
    return mine.v;
}
}  // namespace coc
#pragma GCC visibility pop

// ---- what kernels call
#define COC_LINE int line = __builtin_LINE()
inline void __syncthreads(COC_LINE) {
    coc::self->state = coc::at_barrier, coc::self->what = "__syncthreads", coc::self->line = line, coc::leave();
}
inline void __syncwarp(unsigned mask = ~0u, COC_LINE) { coc::collective(mask, "__syncwarp", line, nullptr, nullptr), coc::self->warp_syncs++; }
inline void __threadfence() {}
#define COC_SHUFFLE(name, inside, source) template <class T> T name(unsigned mask, T v, int by, int width = 32, COC_LINE) { \
        const int lane = coc::self->id & 31, base = lane & ~(width - 1), from = source; \
        return coc::shuffled(mask, v, inside ? from : lane, #name, line); \
    }
COC_SHUFFLE(__shfl_sync, from < base + width, base + (by & (width - 1)))
COC_SHUFFLE(__shfl_xor_sync, from < base + width, lane ^ by)
COC_SHUFFLE(__shfl_down_sync, from < base + width, lane + by)
COC_SHUFFLE(__shfl_up_sync, from >= base, lane - by)
inline unsigned __ballot_sync(unsigned mask, int p, COC_LINE) {
    unsigned mine = p != 0;
    coc::collective(mask, "__ballot_sync", line, &mine, [](void** lanes, unsigned) {
        unsigned all = 0;
        for (int l = 0; l < 32; l++) if (lanes[l]) all |= *static_cast<unsigned*>(lanes[l]) << l;
        for (int l = 0; l < 32; l++) if (lanes[l]) *static_cast<unsigned*>(lanes[l]) = all;
    });
    return mine;
}
inline int __any_sync(unsigned mask, int p, COC_LINE) { return __ballot_sync(mask, p, line) != 0; }
inline int __all_sync(unsigned mask, int p, COC_LINE) { return __ballot_sync(mask, p, line) == mask; }
#define COC_ATOMIC(name, expression) template <class P, class V> auto name(P p, V given) { \
        auto& x = coc::slot(p); \
        const auto old = x, v = static_cast<std::decay_t<decltype(x)>>(given); \
        return x = (expression), old; \
    }
COC_ATOMIC(atomicAdd, old + v) COC_ATOMIC(atomicMax, v > old ? v : old) COC_ATOMIC(atomicMin, v < old ? v : old)
COC_ATOMIC(atomicExch, v) COC_ATOMIC(atomicOr, old | v)
template <class P, class V> V atomicCAS(P p, V compare, V v) { V& x = coc::slot(p), old = x; return x = old == compare ? v : old, old; }
template <class T> constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> T __ldg(const T* p) { return *p; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float2int_rz(float v) { return v != v ? 0 : v >= 2147483648.f ? INT32_MAX : v < -2147483648.f ? INT32_MIN : int(v); }
inline int __float2int_rn(float v) { return __float2int_rz(std::nearbyint(v)); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    const unsigned char* const of[2] = {reinterpret_cast<unsigned char*>(&a), reinterpret_cast<unsigned char*>(&b)};
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= unsigned(of[s >> (4 * i + 2) & 1][s >> 4 * i & 3]) << 8 * i;
    return out;
}
inline unsigned __float_as_uint(float f) { unsigned u; return memcpy(&u, &f, 4), u; }
inline int __popc(unsigned u) { return __builtin_popcount(u); }
inline int __popcll(unsigned long long u) { return __builtin_popcountll(u); }
inline float __uint_as_float(unsigned u) { float f; return memcpy(&f, &u, 4), f; }
inline long long __double_as_longlong(double d) { long long u; return memcpy(&u, &d, 8), u; }
inline double __longlong_as_double(long long u) { double d; return memcpy(&d, &u, 8), d; }
struct f16 { unsigned short x; };
struct bf16 { unsigned short x; };
inline f16 half_of(float f) {
    const unsigned x = __float_as_uint(f) & 0x7fffffff, sign = __float_as_uint(f) >> 16 & 0x8000;
    const unsigned small = __float_as_uint(__uint_as_float(x) + 0.5f) - 0x3f000000, usual = (x + 0xfff + (x >> 13 & 1) - 0x38000000) >> 13;
    return {(unsigned short)(x > 0x7f800000 ? 0x7fff : sign | (x >= 0x477ff000 ? 0x7c00 : x < 0x38800000 ? small : usual))};
}
inline float widen(f16 h) {
    const int e = h.x >> 10 & 31, m = h.x & 1023;
    const float v = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(float(1024 + m), e - 25) : std::ldexp(float(m), -24);
    return h.x & 0x8000 ? -v : v;
}
inline float coc_float(f16 v) { return widen(v); }
inline float coc_float(bf16 v) { return __uint_as_float(unsigned(v.x) << 16); }
template <class T> int dot4(unsigned x, unsigned w, int d) {
    for (int i = 0; i < 32; i += 8) d += int(T(x >> i)) * int(s8(w >> i));
    return d;
}
inline int __dp4a(int a, int b, int c) { return dot4<s8>(unsigned(a), unsigned(b), c); }
template <class W, class S> W wide_load(const S& tile, coc::At at) { W v; return memcpy(&v, tile.r->span(at, sizeof(W), false), sizeof(W)), v; }
template <class W, class S> void wide_store(S& tile, coc::At at, W value) { memcpy(tile.r->span(at, sizeof(W), true), &value, sizeof(W)); }
template <int BYTES, class S> void cp_async(S& tile, coc::At at, const void* src, int given = BYTES) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
    if (given < 0 || given > BYTES) coc::fail("line %d: cp_async of %d bytes out of %d", at.line, given, BYTES);
    if (given && uintptr_t(src) % BYTES) coc::fail("line %d: cp_async of %d bytes from a misaligned address", at.line, BYTES);
    tile.r->copy_later(at, src, BYTES, size_t(given));
}
template <class S> void cp_async16(S& tile, coc::At at, const void* src) { cp_async<16>(tile, at, src); }
template <class S> void cp_async16_part(S& tile, coc::At at, const void* src, int given) { cp_async<16>(tile, at, src, given); }
template <class S> void ldmatrix_x4(unsigned (&r)[4], const S& tile, coc::At at) {
    struct Lane { const void* row; unsigned* r; } mine = {tile.r->span(at, 16, false), r};
    coc::collective(~0u, "ldmatrix", at.line, &mine, [](void** lanes, unsigned) {
        for (int l = 0; l < 32; l++)
            for (int m = 0; m < 4; m++)
                memcpy(static_cast<Lane*>(lanes[l])->r + m, static_cast<const char*>(static_cast<Lane*>(lanes[m * 8 + l / 4])->row) + l % 4 * 4, 4);
    });
}
template <class S> void ldmatrix_x4_turned(unsigned (&r)[4], const S& tile, coc::At at) {
    struct Lane { const void* row; unsigned* r; } mine = {tile.r->span(at, 16, false), r};
    coc::collective(~0u, "ldmatrix", at.line, &mine, [](void** lanes, unsigned) {
        for (int i = 0; i < 32 * 4 * 2; i++) {  // halves of the words of lane l
            const int l = i / 8, m = i / 2 % 4, half = i % 2;
            const char* row = static_cast<const char*>(static_cast<Lane*>(lanes[m * 8 + l % 4 * 2 + half])->row);
            memcpy(reinterpret_cast<char*>(static_cast<Lane*>(lanes[l])->r + m) + 2 * half, row + l / 4 * 2, 2);
        }
    });
}
inline void cp_async_commit() { coc::commit_copies(); }
template <int N> void cp_async_wait() { coc::sync_copies(N); }
// Sums of halves are made in float64 and rounded once; a GPU's order and rounding are its own: compare those with a tolerance.
template <class T, class U, int K, class D> void coc_mma(D (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], int line) {
    struct Lane { D* d; const unsigned *a, *b; } mine = {d, a, b};
    using Sum = std::conditional_t<K == 32, int, double>;  // K = 8: floats, of which the last 13 bits are not read
    coc::collective(~0u, "mma", line, &mine, [](void** lanes, unsigned) {
        constexpr int per = K / 8;  // numbers in a word
        Sum left[16][K], right[K][8];
        for (int i = 0; i < 32 * 6 * per; i++) {
            const int l = i / (6 * per), w = i / per % 6, k = (w < 4 ? w / 2 : w - 4) * K / 2 + l % 4 * per + i % per;
            const Lane& lane = *static_cast<Lane*>(lanes[l]);
            const unsigned v = (w < 4 ? lane.a[w] : lane.b[w - 4]) >> i % per * (32 / per % 32);
            Sum number;
            if constexpr (K == 8) number = Sum(__uint_as_float(v & ~0x1fffu));
            else if constexpr (K == 16) number = Sum(coc_float(T{(unsigned short)v}));
            else number = w < 4 ? Sum(T(v)) : Sum(U(v));
            (w < 4 ? left[l / 4 + w % 2 * 8][k] : right[k][l / 4]) = number;
        }
        for (int i = 0; i < 128; i++) {
            const int l = i / 4, e = i % 4;
            Sum sum = 0;
            for (int k = 0; k < K; k++) sum += left[l / 4 + e / 2 * 8][k] * right[k][l % 4 * 2 + e % 2];
            D& out = static_cast<Lane*>(lanes[l])->d[e];
            out = D(out + sum);
        }
    });
}
template <class T, class U = s8> void mma_16x8x32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], COC_LINE) { coc_mma<T, U, 32>(d, a, b, line); }
template <class T> void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], COC_LINE) { coc_mma<T, T, 16>(d, a, b, line); }
inline void mma_16x8x8(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], COC_LINE) { coc_mma<float, float, 8>(d, a, b, line); }
