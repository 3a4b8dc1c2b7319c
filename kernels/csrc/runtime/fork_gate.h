// Keeps fork() out of running kernels: a child has only the thread that forked, so locks that other threads
// held would stay locked in it for ever (oneDNN's, those of NumPy's BLAS, ours).
#pragma once
#include <mutex>
#include <thread>

namespace mge {

// Held while a kernel runs. Waits while another thread forks; may nest.
class InKernel {
  public:
    InKernel();
    ~InKernel();
    InKernel(const InKernel&) = delete;
    InKernel& operator=(const InKernel&) = delete;
};

// A mutex for what takes longer than one kernel: it may be held while another thread forks, and is free in
// the child.
class ForkMutex {
  public:
    ForkMutex();
    ~ForkMutex();
    ForkMutex(const ForkMutex&) = delete;
    ForkMutex& operator=(const ForkMutex&) = delete;

    void lock() {
        mutex_->lock();
        owner_ = std::this_thread::get_id();
    }
    void unlock() {
        owner_ = {};
        mutex_->unlock();
    }
    // In a child. The old mutex may be locked for ever and is not destroyed.
    void renew() {
        if (owner_ != std::this_thread::get_id()) mutex_ = new std::mutex;
    }

  private:
    std::mutex* mutex_ = new std::mutex;
    std::thread::id owner_;
};

}  // namespace mge
