// Locks that stay usable in the child of a fork.
#pragma once
#include <mutex>
#include <thread>

namespace mge {

// A mutex for work longer than one kernel: it may be held while another thread forks, and is free in the
// child.
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
    // In a child. The old mutex may stay locked and is not destroyed.
    void renew() {
        if (owner_ != std::this_thread::get_id()) mutex_ = new std::mutex;
    }

  private:
    std::mutex* mutex_ = new std::mutex;
    std::thread::id owner_;
};

}  // namespace mge
