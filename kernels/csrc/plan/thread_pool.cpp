#include "plan/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(MGE_X86)
#include <immintrin.h>
#endif

namespace mge {
namespace {

// A wait looks this many times, about 15 us; then it yields its core between looks; then it sleeps. To wake a
// thread takes 50 us and more, as long as a step of a small network.
constexpr int kLooks = 1000;
constexpr std::chrono::microseconds kYielding{500};

void relax() {
#if defined(MGE_X86)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

void await_change(const std::atomic<int>& value, int old) {
    for (int i = 0; i < kLooks; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        relax();
    }
    for (const auto end = std::chrono::steady_clock::now() + kYielding;
         std::chrono::steady_clock::now() < end;) {
        if (value.load(std::memory_order_acquire) != old) return;
        std::this_thread::yield();
    }
    value.wait(old, std::memory_order_acquire);
}

// Moves this thread from a core, if it is there and may run on others: a thread that is woken may be put
// beside the one that woke it, and several calls pass before the system parts them.
void leave(int cpu) {
    cpu_set_t all;
    if (cpu < 0 || sched_getcpu() != cpu || sched_getaffinity(0, sizeof all, &all) != 0) return;
    cpu_set_t others = all;
    CPU_CLR(cpu, &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
        sched_setaffinity(0, sizeof all, &all);
}

}  // namespace

// What a caller and the workers that it borrowed share, from its first step to its last.
struct Round {
    using Job = std::function<void(int, int)>;

    // The number of the step in the high half, how many of its parts nobody has taken in the low half:
    // whoever takes one off owns it, and then the step is not over, so `job` belongs to it. How many there
    // are must not lie beside it: a worker would read that of the next step, and take a part which this one
    // does not have.
    std::atomic<std::uint64_t> open{0};
    std::atomic<const Job*> job{nullptr};
    std::atomic<int> left{0};
    std::atomic<int> step{0};  // changes with each step; workers wait for it
    std::atomic<bool> over{false};
    std::vector<struct Worker*> workers;
    const int cpu = sched_getcpu();  // of the caller

    void begin(int count, const Job& work) {
        job.store(&work, std::memory_order_relaxed);
        left.store(count, std::memory_order_relaxed);
        const std::uint64_t number = (open.load(std::memory_order_relaxed) >> 32) + 1;
        open.store(number << 32 | static_cast<std::uint32_t>(count), std::memory_order_release);
        step.fetch_add(1, std::memory_order_release);
        step.notify_all();
    }

    void take(int member) {
        std::uint64_t at = open.load(std::memory_order_acquire);
        while (const auto parts = static_cast<std::uint32_t>(at)) {
            const Job* work = job.load(std::memory_order_relaxed);
            if (!open.compare_exchange_weak(at, at - 1, std::memory_order_acq_rel, std::memory_order_acquire))
                continue;
            (*work)(static_cast<int>(parts - 1), member);
            --at;
            if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) left.notify_one();
        }
    }

    void finish() {
        for (int l = left.load(std::memory_order_acquire); l > 0; l = left.load(std::memory_order_acquire))
            await_change(left, l);
    }

    void serve(int member) {
        for (int seen = 0; !over.load(std::memory_order_acquire);) {
            await_change(step, seen);
            seen = step.load(std::memory_order_acquire);
            take(member);
        }
    }
};

namespace {

// Workers of a process. They are never ended: those of a parent do not exist in the child of a fork, which
// makes its own.
struct Pool {
    const pid_t pid = getpid();
    std::mutex mutex;
    std::vector<struct Worker*> idle;
    int workers = 0;
};

}  // namespace

struct Worker {
    Pool& pool;
    std::shared_ptr<Round> round;  // the next one; guarded by the pool's mutex
    int member = 0;
    std::atomic<int> calls{0};

    void loop() {
        for (int seen = 0;;) {
            await_change(calls, seen);
            std::shared_ptr<Round> mine;
            int number = 0;
            {
                const std::lock_guard lock(pool.mutex);
                seen = calls.load(std::memory_order_relaxed);
                mine = std::move(round);
                number = member;
            }
            if (!mine) continue;
            leave(mine->cpu);
            mine->serve(number);
        }
    }
};

namespace {

Pool& pool_of_this_process() {
    static std::atomic<Pool*> pool{new Pool};
    Pool* current = pool.load(std::memory_order_acquire);
    if (current->pid == getpid()) return *current;
    auto* made = new Pool;
    if (pool.compare_exchange_strong(current, made, std::memory_order_acq_rel)) return *made;
    delete made;  // another thread of the child was first
    return *current;
}

int usable_cpus() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0
               ? CPU_COUNT(&set)
               : static_cast<int>(std::thread::hardware_concurrency());
}

// A new worker, or none if the system makes no thread.
Worker* hire(Pool& pool) {
    auto worker = std::make_unique<Worker>(pool);
    try {
        std::thread([w = worker.get()] { w->loop(); }).detach();
    } catch (const std::system_error&) {
        return nullptr;
    }
    ++pool.workers;
    return worker.release();
}

}  // namespace

Team::Team(int threads) {
    if (threads < 2) return;
    const int others = usable_cpus() - 1, wanted = std::min(threads - 1, others);
    if (wanted < 1) return;
    Pool& pool = pool_of_this_process();
    auto round = std::make_shared<Round>();
    const std::lock_guard lock(pool.mutex);
    while (static_cast<int>(round->workers.size()) < wanted) {
        Worker* worker = nullptr;
        if (!pool.idle.empty()) {
            worker = pool.idle.back();
            pool.idle.pop_back();
        } else if (pool.workers < others) {
            worker = hire(pool);
        }
        if (!worker) break;
        round->workers.push_back(worker);
        worker->round = round;
        worker->member = static_cast<int>(round->workers.size());
        worker->calls.fetch_add(1, std::memory_order_release);
        worker->calls.notify_one();
    }
    if (!round->workers.empty()) round_ = std::move(round);
}

Team::~Team() {
    if (!round_) return;
    round_->over.store(true, std::memory_order_release);
    round_->step.fetch_add(1, std::memory_order_release);
    round_->step.notify_all();
    Pool& pool = round_->workers[0]->pool;
    if (pool.pid != getpid()) return;  // forked since: the workers are the parent's
    const std::lock_guard lock(pool.mutex);
    pool.idle.insert(pool.idle.end(), round_->workers.begin(), round_->workers.end());
}

void Team::run(int parts, const std::function<void(int, int)>& job) {
    if (!round_ || parts <= 1) {
        for (int part = 0; part < parts; ++part) job(part, 0);
        return;
    }
    round_->begin(parts, job);
    round_->take(0);
    round_->finish();
}

}  // namespace mge
