// Five callers run steps of few tiny parts in the pool, as if there were four CPUs. Prints how many steps
// were wrong.
#include <sched.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "plan/thread_pool.h"

extern "C" int sched_getaffinity(pid_t, std::size_t, cpu_set_t* set) noexcept {
    CPU_ZERO(set);
    for (int cpu = 0; cpu < 4; ++cpu) CPU_SET(cpu, set);
    return 0;
}
extern "C" int sched_setaffinity(pid_t, std::size_t, const cpu_set_t*) noexcept { return -1; }

int main() {
    std::atomic<long> wrong{0};
    const auto caller = [&](unsigned drawn) {
        for (int round = 0; round < 500; ++round) {
            const int threads = 1 + static_cast<int>((drawn + static_cast<unsigned>(round)) % 4);
            mge::Team team(threads);
            for (int step = 0; step < 30; ++step) {
                drawn = drawn * 1664525u + 1013904223u;
                const int parts = 1 + static_cast<int>((drawn >> 16) % 9);
                std::vector<long> done(static_cast<std::size_t>(parts)),
                    by(static_cast<std::size_t>(threads));
                team.run(parts, [&](int part, int member) {
                    for (std::atomic<int> i{0}; i < 100; ++i) {
                    }
                    done[static_cast<std::size_t>(part)] += part + 1;
                    by[static_cast<std::size_t>(member)] += 1;
                });
                long sum = 0, count = 0;
                for (const long one : done) sum += one;
                for (const long one : by) count += one;
                wrong += sum != parts * (parts + 1L) / 2 || count != parts;
            }
        }
    };
    std::vector<std::thread> callers;
    for (unsigned i = 0; i < 5; ++i) callers.emplace_back(caller, i * 7919u + 1);
    for (std::thread& one : callers) one.join();
    std::printf("%ld wrong\n", wrong.load());
}
