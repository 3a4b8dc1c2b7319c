// The worker threads of the process, which all plans share. A run of a plan borrows some: they wait for its
// steps and take parts of them, the caller too.
#pragma once
#include <functional>
#include <memory>

namespace mge {

struct Round;

// Threads for one run: the caller and up to `threads` - 1 workers, of which the process has one fewer than
// CPUs.
class Team {
  public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Calls job(part, member) for part in [0, parts) and returns when all are done. Parts go to whoever is
    // free: the caller computes all of them if no worker comes, as in the child of a fork. Members have
    // numbers below `threads`; those of calls at the same time differ.
    void run(int parts, const std::function<void(int, int)>& job);

  private:
    std::shared_ptr<Round> round_;  // none without workers
};

}  // namespace mge
