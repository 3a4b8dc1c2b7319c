#include "plan/thread_pool.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(MGE_X86)
#include <immintrin.h>
#endif

namespace mge {
namespace {

// Workers look for new work this many times before they sleep: about 20 us, longer than the gap between two
// steps.
constexpr int kSpins = 2000;

void relax() {
#if defined(MGE_X86)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

}  // namespace

struct ThreadPool::Workers {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<unsigned> generation{0};
    std::atomic<int> next{0}, left{0};
    std::atomic<bool> stop{false};
    int parts = 0;
    const std::function<void(int)>* job = nullptr;

    void take() {
        for (int part = next.fetch_add(1); part < parts; part = next.fetch_add(1)) {
            (*job)(part);
            left.fetch_sub(1, std::memory_order_acq_rel);
        }
    }

    void loop() {
        unsigned seen = 0;
        while (true) {
            for (int i = 0; i < kSpins && generation.load(std::memory_order_acquire) == seen; ++i) relax();
            {
                std::unique_lock lock(mutex);
                wake.wait(lock, [&] { return stop || generation.load() != seen; });
                if (stop) return;
                seen = generation.load();
                ++inside;
            }
            take();
            --inside;
        }
    }

    std::atomic<int> inside{0};  // workers that may still look at the current job
};

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {}

void ThreadPool::start() {
    if (workers_ && pid_ != getpid())
        (void)workers_.release();  // the parent's threads do not exist in this process
    if (workers_) return;
    workers_ = std::make_unique<Workers>();
    pid_ = getpid();
    for (int i = 1; i < threads_; ++i) workers_->threads.emplace_back([w = workers_.get()] { w->loop(); });
}

ThreadPool::~ThreadPool() {
    if (!workers_) return;
    if (pid_ != getpid()) {
        (void)workers_.release();
        return;
    }
    {
        std::lock_guard lock(workers_->mutex);
        workers_->stop = true;
    }
    workers_->wake.notify_all();
    for (auto& t : workers_->threads) t.join();
}

void ThreadPool::run(int parts, const std::function<void(int)>& job) {
    if (parts <= 1 || threads_ == 1) {
        for (int part = 0; part < parts; ++part) job(part);
        return;
    }
    start();
    auto& w = *workers_;
    {
        std::lock_guard lock(w.mutex);
        while (w.inside.load(std::memory_order_acquire) > 0) relax();  // a late worker of the last job
        w.parts = parts;
        w.job = &job;
        w.left.store(parts);
        w.next.store(0);
        w.generation.fetch_add(1, std::memory_order_release);
    }
    w.wake.notify_all();
    w.take();
    while (w.left.load(std::memory_order_acquire) > 0 || w.inside.load(std::memory_order_acquire) > 0)
        relax();
}

}  // namespace mge
