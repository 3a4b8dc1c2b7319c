#include "common/fork_gate.h"

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <unordered_set>

#include "runtime/bind.h"
#include "runtime/fork_mutex.h"

namespace nb = nanobind;

namespace mge {
namespace {

struct Waiting {
    std::mutex mutex;
    std::condition_variable changed;
};

std::atomic<int> inside{0};   // threads that run kernels
std::atomic<int> closing{0};  // threads before a fork
thread_local int depth = 0;   // nested kernels of this thread
Waiting* waiting = new Waiting;

std::mutex* mutexes_lock = new std::mutex;
std::unordered_set<ForkMutex*>& mutexes() {
    static auto* all = new std::unordered_set<ForkMutex*>;
    return *all;
}

void withdraw() {
    inside.fetch_sub(1);
    if (closing.load() == 0) return;
    const std::lock_guard lock(waiting->mutex);
    waiting->changed.notify_all();
}

void wait_until_open() {
    std::optional<nb::gil_scoped_release> released;  // others need it to finish
    if (PyGILState_Check()) released.emplace();
    std::unique_lock lock(waiting->mutex);
    waiting->changed.wait(lock, [] { return closing.load() == 0; });
}

void enter() {
    if (depth++ > 0) return;
    for (inside.fetch_add(1); closing.load() != 0; inside.fetch_add(1)) {
        withdraw();
        wait_until_open();
    }
}

void leave() {
    if (--depth == 0) withdraw();
}

constexpr ForkGate kGate{enter, leave};

// Before fork(): returns when no other thread runs a kernel. A kernel that does not end within the limit is
// not waited for any longer: it may wait for a thread that wants to start one.
void close(double seconds) {
    closing.fetch_add(1);
    nb::gil_scoped_release released;
    std::unique_lock lock(waiting->mutex);
    waiting->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                              [] { return inside.load() <= (depth > 0 ? 1 : 0); });
}

void open() {
    closing.fetch_sub(1);
    const std::lock_guard lock(waiting->mutex);
    waiting->changed.notify_all();
}

// In the child of a fork: no other thread runs, and none will release a lock.
void begin_child() {
    waiting = new Waiting;
    mutexes_lock = new std::mutex;
    inside = depth > 0 ? 1 : 0;
    closing = 0;
    for (ForkMutex* mutex : mutexes()) mutex->renew();
}

}  // namespace

const ForkGate* fork_gate = &kGate;

ForkMutex::ForkMutex() {
    const std::lock_guard lock(*mutexes_lock);
    mutexes().insert(this);
}

ForkMutex::~ForkMutex() {
    {
        const std::lock_guard lock(*mutexes_lock);
        mutexes().erase(this);
    }
    delete mutex_;
}

void bind_fork_gate(nb::module_& m) {
    m.def("before_fork", &close, nb::arg("seconds"));
    m.def("after_fork_in_parent", &open);
    m.def("after_fork_in_child", &begin_child);
    m.attr("fork_gate") = nb::capsule(fork_gate, kForkGate);
}

}  // namespace mge
