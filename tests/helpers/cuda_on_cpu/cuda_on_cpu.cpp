// What runs the kernels of a library (cuda_on_cpu.h): switches of threads, shared memory, launches. Linked with each.
#include "cuda_on_cpu.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#pragma GCC visibility push(hidden)
namespace coc {
struct Copy { Region* to; long i; int line; const void* from; size_t bytes, given; };  // given: the first of the bytes, zeros behind them
struct Thread : Fiber {
    void* sp;
    ucontext_t context;
    std::vector<Copy> copies;  // cp.async: asked for, not yet there
    std::vector<size_t> groups;
};
constexpr size_t kStack = 64 << 10, kGuard = 4096, kMaxThreads = 1024, kMaxShared = 227 << 10;
static Thread fibers[kMaxThreads];
Fiber* self;
dim3 block_index, block_dim, grid_dim;
size_t dynamic_bytes;
static unsigned threads, epoch = 1, block_serial;
static size_t shared_bytes;
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
static void enter(Thread& f) { coc_switch(&scheduler, f.sp); }
void leave() { coc_switch(&static_cast<Thread*>(self)->sp, scheduler); }
static void aim(Thread& f, char* stack, void (*at)()) {
    void** top = reinterpret_cast<void**>(stack + kStack) - 3;  // address % 16 == 8, as after a call
    *top = nullptr, *--top = reinterpret_cast<void*>(at), f.sp = top - 6;
}
#else
static ucontext_t scheduler;
static void enter(Thread& f) { swapcontext(&scheduler, &f.context); }
void leave() { swapcontext(&static_cast<Thread*>(self)->context, &scheduler); }
static void aim(Thread& f, char* stack, void (*at)()) {
    getcontext(&f.context), f.context.uc_link = nullptr;
    f.context.uc_stack.ss_sp = stack + kGuard, f.context.uc_stack.ss_size = kStack - kGuard, makecontext(&f.context, at, 0);
}
#endif
static void start() { body(body_fn, body_args), self->state = done, leave(); }

// ---- errors: the launch ends with a text that names block, thread and line
static std::string name_of(const Fiber& f) {
    return "thread (" + std::to_string(f.index.x) + "," + std::to_string(f.index.y) + "," + std::to_string(f.index.z) + ")";
}
void fail(const char* format, ...) {
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
void collective(unsigned mask, const char* what, int line, void* data, void (*act)(void**, unsigned)) {
    Fiber& f = *self;
    Thread* const warp = fibers + (f.id & ~31u);
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

// ---- shared memory
struct Shadow { unsigned written, read, serial, writer_syncs, reader_syncs; uint16_t writer, reader; };
enum : uint16_t { many = 0xffff, of_warp = 0x8000 };  // readers: several threads, several of one warp
static bool apart(unsigned other, unsigned syncs) {  // not ordered by a barrier since the other's access
    return other != self->id && ((other & 0x7fff) >> 5 != self->id >> 5 || self->warp_syncs <= syncs);
}
Shadow& Region::at(long i, int line) {
    if (i < 0 || size_t(i) >= count) fail("line %d: %s[%ld] of %zu elements", line, name, i, count);
    return shadow[i];
}
void Region::race(long i, int line, const char* now, const char* before, unsigned other) {
    const std::string who = other == many ? "several threads" : other & of_warp ? "threads of its warp" : name_of(fibers[other]);
    fail("race, line %d: %s %s[%ld], which %s %s since the last barrier", line, now, name, i, who.c_str(), before);
}
void Region::read(long i, int line) {
    Shadow& s = at(i, line);
    if (s.serial != block_serial) fail("line %d: reads %s[%ld], which was never written", line, name, i);
    if (s.written == epoch && apart(s.writer, s.writer_syncs)) race(i, line, "reads", "wrote", s.writer);
    const bool fresh = s.read != epoch || s.reader == self->id, warp = s.reader != many && (s.reader & 0x7fff) >> 5 == self->id >> 5;
    s.reader = uint16_t(fresh ? self->id : warp ? of_warp | (self->id & ~31u) : many);
    s.reader_syncs = fresh ? self->warp_syncs : std::max(s.reader_syncs, self->warp_syncs), s.read = epoch;
}
void Region::write(long i, int line) {
    Shadow& s = at(i, line);
    if (s.written == epoch && apart(s.writer, s.writer_syncs)) race(i, line, "writes", "wrote", s.writer);
    if (s.read == epoch && apart(s.reader, s.reader_syncs)) race(i, line, "writes", "read", s.reader);
    s.serial = block_serial, s.written = epoch, s.writer = uint16_t(self->id), s.writer_syncs = self->warp_syncs;
}
void Region::change(long i, int line) {
    if (at(i, line).serial != block_serial) fail("line %d: changes %s[%ld], which was never written", line, name, i);
}
char* Region::span(At at, size_t bytes, bool write) {
    if (at.i * size % std::min<size_t>(bytes, 16)) fail("line %d: misaligned access to %s[%ld]", at.line, name, at.i);
    for (size_t k = 0; k < bytes / size; k++) write ? this->write(at.i + k, at.line) : read(at.i + k, at.line);
    return memory + at.i * size;
}
void Region::copy_later(At at, const void* src, size_t bytes, size_t given) {
    span(at, bytes, true);
    for (size_t k = 0; k < bytes / size; k++) shadow[at.i + k].serial = 0;  // not there before the wait
    static_cast<Thread*>(self)->copies.push_back({this, at.i, at.line, src, bytes, given});
}
Region& region(const void* key, const char* name, size_t size, size_t count) {
    static std::map<const void*, Region> all;
    Region& r = all[key];
    if (r.serial == block_serial && r.size == size) return r;
    if (r.serial == block_serial) fail("%s: dynamic shared memory is used with two types", name);
    if (r.count != count || r.size != size) {
        free(r.memory), r.memory = static_cast<char*>(aligned_alloc(16, (size * count + 31) / 16 * 16));
        free(r.shadow), r.shadow = static_cast<Shadow*>(calloc(count, sizeof(Shadow)));
    }
    r.name = name, r.size = size, r.count = count, r.serial = block_serial, shared_bytes += key ? size * count : 0;
    if (shared_bytes > kMaxShared) fail("%zu bytes of shared memory, more than %zu", shared_bytes, kMaxShared);
    return memset(r.memory, 0xff, size * count), r;
}
void commit_copies() {
    Thread& f = *static_cast<Thread*>(self);
    f.groups.push_back(f.copies.size());
}
void sync_copies(size_t keep) {
    Thread& f = *static_cast<Thread*>(self);
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
bool enter_kernel(const char* name, unsigned most, void* fn, void (*call)(void*, void**), const Kind* kinds, size_t count) {
    std::string signature;
    for (size_t i = 0; i < count; i++) signature += std::string(kinds[i].pointers, 'P') + kinds[i].letter + std::to_string(kinds[i].size) + " ";
    return kernels()[name] = {fn, most, call, signature}, true;
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
            Thread& f = fibers[i];
            f.index = {i % block_dim.x, i / block_dim.x % block_dim.y, i / block_dim.x / block_dim.y}, f.id = i, f.state = ready;
            f.warp_syncs = 0, f.line = 0, f.copies.clear(), f.groups.clear(), aim(f, stacks + i * kStack, start);
        }
        for (unsigned left = threads; left;) {
            bool moved = false;
            if (order == 2) std::shuffle(turn.begin(), turn.end(), rng);
            for (const unsigned i : turn)
                if (fibers[i].state == ready) self = &fibers[i], moved = true, enter(fibers[i]), left -= fibers[i].state == done;
            if (!moved) release_barrier();
        }
        self = nullptr;
    }
}
}  // namespace coc
#pragma GCC visibility pop
using namespace coc;
#define COC_API extern "C" __attribute__((visibility("default")))
COC_API const char* coc_signature(const char* name) { return kernels().count(name) ? kernels()[name].signature.c_str() : nullptr; }
// The stacks of all threads: given, if another library has made them (a process may have 65530 mappings), or new.
COC_API char* coc_stacks(char* given) {
    if (given || stacks) return stacks = given ? given : stacks;
    stacks = static_cast<char*>(mmap(nullptr, kMaxThreads * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t i = 0; i < kMaxThreads; i++) mprotect(stacks + i * kStack, kGuard, PROT_NONE);
    return stacks;
}
// 0, or 1 with a text in *message. The limit is in milliseconds of processor time. One launch at a time in a process.
COC_API int coc_launch(const char* name, const unsigned* grid, const unsigned* block, unsigned dynamic, void** args, int order,
                       unsigned seed, unsigned limit, const char** message) {
    static char signal_stack[64 << 10];
    const Entry& entry = kernels().at(name);
    struct sigaction action = {}, before[4];
    const int signals[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGVTALRM};
    const itimerval timer = {{0, 0}, {limit / 1000, limit % 1000 * 1000}}, off = {};
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
