// Runs CUDA kernels on a CPU, thread by thread, as a slow and strict GPU: gcc or clang, C++17.
//
// A kernel file is included inside an anonymous namespace, in one translation unit for each shared library; portable.cuh
// includes this file where no CUDA compiler reads it. A launch reports, with block, thread and line: an index outside a
// shared array, shared memory that is read before it is written, races on it in any order of threads, divergent barriers,
// data of cp_async16 used before the wait, accesses one element outside a global array, misaligned vectors, endless
// loops, and arguments of a wrong number or type.
#pragma once
typedef unsigned char u8;
typedef signed char s8;
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>
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

namespace coc {
enum State { ready, at_barrier, at_warp, done };
struct Copy { struct Region* to; long i; int line; const void* from; size_t bytes, given; };  // given: the first of the bytes, zeros behind them
struct Fiber {  // one CUDA thread
    uint3 index;
    unsigned id, mask, warp_syncs;
    State state;
    int line;
    const char* what;
    void *data, *sp;
    ucontext_t context;
    std::vector<Copy> copies;  // cp.async: asked for, not yet there
    std::vector<size_t> groups;
};
constexpr size_t kStack = 64 << 10, kGuard = 4096, kMaxThreads = 1024, kMaxShared = 227 << 10;
static Fiber fibers[kMaxThreads], *self;
static dim3 block_index, block_dim, grid_dim;
static unsigned threads, epoch = 1, block_serial;
static size_t shared_bytes, dynamic_bytes;
static char* stacks;
static std::string error;
static sigjmp_buf escape;
static void (*body)(void*, void**), *body_fn, **body_args;
extern "C" char __start_coc_shared[] __attribute__((weak, visibility("hidden"))), __stop_coc_shared[] __attribute__((weak, visibility("hidden")));

// ---- context switch: own one on x86-64, ucontext elsewhere
#if defined(__x86_64__) && !defined(COC_UCONTEXT)
extern "C" void coc_switch(void** save, void* to) __attribute__((visibility("hidden")));
asm(".text\n.hidden coc_switch\n.globl coc_switch\n.type coc_switch,@function\ncoc_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static void* scheduler;
static void enter(Fiber& f) { coc_switch(&scheduler, f.sp); }
static void leave() { coc_switch(&self->sp, scheduler); }
static void aim(Fiber& f, char* stack, void (*at)()) {
    void** top = reinterpret_cast<void**>(stack + kStack) - 3;  // address % 16 == 8, as after a call
    *top = nullptr, *--top = reinterpret_cast<void*>(at), f.sp = top - 6;
}
#else
static ucontext_t scheduler;
static void enter(Fiber& f) { swapcontext(&scheduler, &f.context); }
static void leave() { swapcontext(&self->context, &scheduler); }
static void aim(Fiber& f, char* stack, void (*at)()) {
    getcontext(&f.context), f.context.uc_link = nullptr;
    f.context.uc_stack.ss_sp = stack + kGuard, f.context.uc_stack.ss_size = kStack - kGuard, makecontext(&f.context, at, 0);
}
#endif
static void start() { body(body_fn, body_args), self->state = done, leave(); }

// ---- errors: the launch ends with a text that names block, thread and line
static std::string name_of(const Fiber& f) {
    return "thread (" + std::to_string(f.index.x) + "," + std::to_string(f.index.y) + "," + std::to_string(f.index.z) + ")";
}
__attribute__((format(printf, 1, 2))) static void fail(const char* format, ...) {
    char text[400], where[80];
    va_list list;
    va_start(list, format), vsnprintf(text, sizeof text, format, list), va_end(list);
    snprintf(where, sizeof where, "block (%u,%u,%u) ", block_index.x, block_index.y, block_index.z);
    error = where + (self ? name_of(*self) : "all threads") + ": " + text, siglongjmp(escape, 1);
}
static void on_signal(int number, siginfo_t* info, void* context) {
    char *at = static_cast<char*>(info->si_addr), *code = nullptr;
    Dl_info library = {};
#ifdef __x86_64__
    code = reinterpret_cast<char*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]), dladdr(code, &library);
#endif
    const char* what = number == SIGVTALRM ? "no end: the launch took longer than its limit" : number == SIGFPE ? "integer division by zero"
        : at >= stacks && at < stacks + kMaxThreads * kStack ? "stack overflow" : "access outside its array, misaligned, or a write to an input";
    fail("%s, code +0x%lx", what, long(library.dli_fbase ? code - static_cast<char*>(library.dli_fbase) : 0));
}

// ---- barriers
static std::string waits(const Fiber& f) {
    return name_of(f) + (f.state == done ? " has ended" : std::string(" waits in ") + f.what + " line " + std::to_string(f.line));
}
static void release_barrier() {  // nobody can run: everybody stands at one barrier, or the kernel is wrong
    const Fiber* first = self = nullptr;
    for (unsigned i = 0; i < threads; i++) {
        const Fiber& f = fibers[i];
        for (unsigned l = 0; l < 32 && f.state == at_warp; l++)
            if (const Fiber& o = fibers[(i & ~31u) + l]; f.mask >> l & 1 && (o.state != at_warp || o.line != f.line || o.mask != f.mask))
                fail("deadlock: %s with mask %08x; %s", waits(f).c_str(), f.mask, waits(o).c_str());
        if (!first) first = &f;
        if (f.state != first->state || f.line != first->line) fail("divergent barrier: %s; %s", waits(*first).c_str(), waits(f).c_str());
    }
    for (unsigned i = 0; i < threads; i++) fibers[i].state = ready;
    epoch++;
}
static void collective(unsigned mask, const char* what, int line, void* data, void (*act)(void**, unsigned)) {
    Fiber &f = *self, *warp = fibers + (f.id & ~31u);
    void* lanes[32] = {};
    if (!(mask >> (f.id & 31) & 1)) fail("%s line %d: mask %08x does not name the calling lane", what, line, mask);
    f.state = at_warp, f.mask = mask, f.what = what, f.line = line, f.data = data;
    for (unsigned l = 0; l < 32; l++) {
        if (!(mask >> l & 1)) continue;
        if ((f.id & ~31u) + l >= threads) fail("%s line %d: mask %08x names lane %u, which the block lacks", what, line, mask, l);
        if (warp[l].state != at_warp || warp[l].mask != mask || warp[l].line != line) return leave();
        lanes[l] = warp[l].data;
    }
    if (act) act(lanes, mask);  // the last one computes for everybody
    for (unsigned l = 0; l < 32; l++) if (mask >> l & 1) warp[l].state = ready;
}

// ---- shared memory: bounds, reads of what nobody wrote, and races, element by element
struct Shadow { unsigned written, read, serial, writer_syncs, reader_syncs; uint16_t writer, reader; };
struct Region {
    const char* name;
    size_t size, count, serial;
    char* memory;
    std::vector<Shadow> shadow;
    enum : uint16_t { many = 0xffff, of_warp = 0x8000 };  // readers: several threads, several of one warp
    static bool apart(unsigned other, unsigned syncs) {  // not ordered by a barrier since the other's access
        return other != self->id && ((other & 0x7fff) >> 5 != self->id >> 5 || self->warp_syncs <= syncs);
    }
    Shadow& at(long i, int line) {
        if (i < 0 || size_t(i) >= count) fail("line %d: %s[%ld] of %zu elements", line, name, i, count);
        return shadow[i];
    }
    void race(long i, int line, const char* now, const char* before, unsigned other) {
        const std::string who = other == many ? "several threads" : other & of_warp ? "threads of its warp" : name_of(fibers[other]);
        fail("race, line %d: %s %s[%ld], which %s %s since the last barrier", line, now, name, i, who.c_str(), before);
    }
    void read(long i, int line) {
        Shadow& s = at(i, line);
        if (s.serial != block_serial) fail("line %d: reads %s[%ld], which was never written", line, name, i);
        if (s.written == epoch && apart(s.writer, s.writer_syncs)) race(i, line, "reads", "wrote", s.writer);
        const bool fresh = s.read != epoch || s.reader == self->id, warp = s.reader != many && (s.reader & 0x7fff) >> 5 == self->id >> 5;
        s.reader = uint16_t(fresh ? self->id : warp ? of_warp | (self->id & ~31u) : many);
        s.reader_syncs = fresh ? self->warp_syncs : std::max(s.reader_syncs, self->warp_syncs), s.read = epoch;
    }
    void write(long i, int line) {
        Shadow& s = at(i, line);
        if (s.written == epoch && apart(s.writer, s.writer_syncs)) race(i, line, "writes", "wrote", s.writer);
        if (s.read == epoch && apart(s.reader, s.reader_syncs)) race(i, line, "writes", "read", s.reader);
        s.serial = block_serial, s.written = epoch, s.writer = uint16_t(self->id), s.writer_syncs = self->warp_syncs;
    }
};
static Region& region(const void* key, const char* name, size_t size, size_t count) {  // key null: dynamic
    static std::map<const void*, Region> all;
    Region& r = all[key];
    if (r.serial == block_serial && r.size == size) return r;
    if (r.serial == block_serial) fail("%s: dynamic shared memory is used with two types", name);
    if (r.count != count || r.size != size)
        free(r.memory), r.memory = static_cast<char*>(aligned_alloc(16, (size * count + 31) / 16 * 16)), r.shadow.assign(count, Shadow{});
    r.name = name, r.size = size, r.count = count, r.serial = block_serial, shared_bytes += key ? size * count : 0;
    if (shared_bytes > kMaxShared) fail("%zu bytes of shared memory, more than %zu", shared_bytes, kMaxShared);
    return memset(r.memory, 0xff, size * count), r;
}
struct At {  // an index that knows the line it stands in
    long i;
    int line;
    template <class I> At(I index, int where = __builtin_LINE()) : i(long(index)), line(where) {}
};
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
    T* span(At at, size_t bytes, bool write) const {  // checks a wide access
        if (at.i * sizeof(T) % std::min<size_t>(bytes, 16)) fail("line %d: misaligned access to %s[%ld]", at.line, r->name, at.i);
        for (size_t k = 0; k < bytes / sizeof(T); k++) write ? r->write(at.i + k, at.line) : r->read(at.i + k, at.line);
        return reinterpret_cast<T*>(r->memory) + at.i;
    }
};
template <class T> T& slot(T* p) { return *p; }
template <class T> T& slot(Ref<T> s) {
    if (s.r->at(s.i, s.line).serial != block_serial) fail("line %d: changes %s[%ld], which was never written", s.line, s.r->name, s.i);
    return s.raw();
}
inline void sync_copies(size_t keep) {  // the copies of all but the `keep` youngest groups arrive
    Fiber& f = *self;
    if (f.groups.size() <= keep) return;
    const size_t last = f.groups[f.groups.size() - 1 - keep];
    for (size_t c = 0; c < last; c++) {
        const Copy& copy = f.copies[c];
        char* to = copy.to->memory + copy.i * copy.to->size;
        memset(to, 0, copy.bytes), memcpy(to, copy.from, copy.given);
        for (size_t k = 0; k < copy.bytes / copy.to->size; k++) copy.to->write(copy.i + k, copy.line);
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + last), f.groups.erase(f.groups.begin(), f.groups.end() - keep);
    for (size_t& g : f.groups) g -= last;
}

// ---- launches
struct Entry { void* fn; unsigned most; void (*call)(void*, void**); std::string signature; };
static std::map<std::string, Entry>& kernels() { static std::map<std::string, Entry> all; return all; }
template <class T> std::string code() {  // as NumPy says it; a pointer is P and what it points to
    if constexpr (std::is_pointer_v<T>) return "P" + code<std::remove_cv_t<std::remove_pointer_t<T>>>();
    else return (std::is_floating_point_v<T> ? "f" : !std::is_integral_v<T> ? "V" : std::is_signed_v<T> ? "i" : "u") + std::to_string(sizeof(T));
}
template <class... A, size_t... I> void call_with(void (*f)(A...), void** a, std::index_sequence<I...>) {
    f(*static_cast<std::remove_cv_t<A>*>(a[I])...);
}
template <class... A> bool add(const char* name, unsigned most, void (*f)(A...)) {
    std::string signature;
    ((signature += code<std::remove_cv_t<A>>() + " "), ...);
    auto call = [](void* fn, void** a) { call_with(reinterpret_cast<void (*)(A...)>(fn), a, std::index_sequence_for<A...>{}); };
    return kernels()[name] = {reinterpret_cast<void*>(f), most, call, signature}, true;
}
static void run(int order, unsigned seed) {  // order of blocks and threads: 0 forward, 1 reverse, 2 random, anew each round
    std::mt19937 rng(seed);
    std::vector<unsigned> turn(threads), blocks(size_t(grid_dim.x) * grid_dim.y * grid_dim.z);
    for (unsigned i = 0; i < threads; i++) turn[i] = order == 1 ? threads - 1 - i : i;
    for (size_t i = 0; i < blocks.size(); i++) blocks[i] = unsigned(order == 1 ? blocks.size() - 1 - i : i);
    if (order == 2) std::shuffle(blocks.begin(), blocks.end(), rng);
    for (const unsigned b : blocks) {
        block_index = {b % grid_dim.x, b / grid_dim.x % grid_dim.y, b / grid_dim.x / grid_dim.y};
        block_serial++, epoch++, shared_bytes = dynamic_bytes;
        if (__start_coc_shared) memset(__start_coc_shared, 0xff, __stop_coc_shared - __start_coc_shared);
        for (unsigned i = 0; i < threads; i++) {
            Fiber& f = fibers[i];
            f.index = {i % block_dim.x, i / block_dim.x % block_dim.y, i / block_dim.x / block_dim.y}, f.id = i, f.state = ready;
            f.warp_syncs = 0, f.line = 0, f.copies.clear(), f.groups.clear(), aim(f, stacks + i * kStack, start);
        }
        for (unsigned left = threads; left;) {
            bool moved = false;
            if (order == 2) std::shuffle(turn.begin(), turn.end(), rng);
            for (const unsigned i : turn)
                if (fibers[i].state == ready) self = &fibers[i], moved = true, enter(*self), left -= self->state == done;
            if (!moved) release_barrier();
        }
        self = nullptr;
    }
}
#define COC_API extern "C" __attribute__((visibility("default")))
COC_API const char* coc_signature(const char* name) { return kernels().count(name) ? kernels()[name].signature.c_str() : nullptr; }
// The stacks of all threads: given, if another library has made them (a process may have 65530 mappings), or new.
COC_API char* coc_stacks(char* given) {
    if (given || stacks) return stacks = given ? given : stacks;
    stacks = static_cast<char*>(mmap(nullptr, kMaxThreads * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t i = 0; i < kMaxThreads; i++) mprotect(stacks + i * kStack, kGuard, PROT_NONE);
    return stacks;
}
// 0, or 1 with a text in *message. The limit is in seconds of processor time. One launch at a time in a process.
COC_API int coc_launch(const char* name, const unsigned* grid, const unsigned* block, unsigned dynamic, void** args, int order,
                       unsigned seed, unsigned limit, const char** message) {
    static char signal_stack[64 << 10];
    const Entry& entry = kernels().at(name);
    struct sigaction action = {}, before[4];
    const int signals[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGVTALRM};
    const itimerval timer = {{0, 0}, {limit, 0}}, off = {};
    stack_t stack = {}, stack_before;
    self = nullptr, error.clear(), body = entry.call, body_fn = entry.fn, body_args = args, dynamic_bytes = dynamic;
    grid_dim = {grid[0], grid[1], grid[2]}, block_dim = {block[0], block[1], block[2]}, threads = block[0] * block[1] * block[2];
    stack.ss_sp = signal_stack, stack.ss_size = sizeof signal_stack, sigaltstack(&stack, &stack_before);
    action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 4; i++) sigaction(signals[i], &action, &before[i]);
    if (!sigsetjmp(escape, 1)) {
        if (!threads || threads > entry.most || block[2] > 64) fail("%u threads a block, the kernel takes 1 to %u", threads, entry.most);
        if (!grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535) fail("a grid of %u x %u x %u", grid[0], grid[1], grid[2]);
        setitimer(ITIMER_VIRTUAL, &timer, nullptr), run(order, seed);
    }
    setitimer(ITIMER_VIRTUAL, &off, nullptr);
    for (int i = 0; i < 4; i++) sigaction(signals[i], &before[i], nullptr);
    return sigaltstack(&stack_before, nullptr), *message = error.c_str(), !error.empty();
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
using std::max;
using std::min;
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
template <class W, class S> W wide_load(const S& tile, coc::At at) { W v; return memcpy(&v, tile.span(at, sizeof(W), false), sizeof(W)), v; }
template <class W, class S> void wide_store(S& tile, coc::At at, W value) { memcpy(tile.span(at, sizeof(W), true), &value, sizeof(W)); }
template <int BYTES, class S> void cp_async(S& tile, coc::At at, const void* src, int given = BYTES) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
    if (given < 0 || given > BYTES) coc::fail("line %d: cp_async of %d bytes out of %d", at.line, given, BYTES);
    if (given && uintptr_t(src) % BYTES) coc::fail("line %d: cp_async of %d bytes from a misaligned address", at.line, BYTES);
    tile.span(at, BYTES, true);
    for (size_t k = 0; k < BYTES / tile.r->size; k++) tile.r->shadow[at.i + k].serial = 0;  // not there before the wait
    coc::self->copies.push_back({tile.r, at.i, at.line, src, BYTES, size_t(given)});
}
template <class S> void cp_async16(S& tile, coc::At at, const void* src) { cp_async<16>(tile, at, src); }
template <class S> void cp_async16_part(S& tile, coc::At at, const void* src, int given) { cp_async<16>(tile, at, src, given); }
template <class S> void ldmatrix_x4(unsigned (&r)[4], const S& tile, coc::At at) {
    struct Lane { const void* row; unsigned* r; } mine = {tile.span(at, 16, false), r};
    coc::collective(~0u, "ldmatrix", at.line, &mine, [](void** lanes, unsigned) {
        for (int l = 0; l < 32; l++)
            for (int m = 0; m < 4; m++)
                memcpy(static_cast<Lane*>(lanes[l])->r + m, static_cast<const char*>(static_cast<Lane*>(lanes[m * 8 + l / 4])->row) + l % 4 * 4, 4);
    });
}
template <class S> void ldmatrix_x4_turned(unsigned (&r)[4], const S& tile, coc::At at) {
    struct Lane { const void* row; unsigned* r; } mine = {tile.span(at, 16, false), r};
    coc::collective(~0u, "ldmatrix", at.line, &mine, [](void** lanes, unsigned) {
        for (int i = 0; i < 32 * 4 * 2; i++) {  // halves of the words of lane l
            const int l = i / 8, m = i / 2 % 4, half = i % 2;
            const char* row = static_cast<const char*>(static_cast<Lane*>(lanes[m * 8 + l % 4 * 2 + half])->row);
            memcpy(reinterpret_cast<char*>(static_cast<Lane*>(lanes[l])->r + m) + 2 * half, row + l / 4 * 2, 2);
        }
    });
}
inline void cp_async_commit() { coc::self->groups.push_back(coc::self->copies.size()); }
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
