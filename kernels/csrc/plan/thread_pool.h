// Thread pool of the plans: parts of one step run at the same time, the caller takes part, and a barrier ends
// the step.
#pragma once
#include <functional>
#include <memory>

namespace mge {

class ThreadPool {
  public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Calls job(part) for part in [0, parts), spread over the threads; returns when all are done. After
    // fork() the child has no workers: they are made anew at the first call.
    void run(int parts, const std::function<void(int)>& job);

  private:
    struct Workers;
    void start();

    int threads_;
    int pid_ = 0;
    std::unique_ptr<Workers> workers_;
};

}  // namespace mge
