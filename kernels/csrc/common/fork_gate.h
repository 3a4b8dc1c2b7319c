// Keeps fork() out of running kernels: a child has only the thread that forked, so locks that other threads
// held would stay locked in it (oneDNN's, those of NumPy's BLAS, our own).
#pragma once

namespace mge {

// The one gate of the process is in _core (runtime/fork_gate.cpp), which exports it to other native modules
// in a PyCapsule named kForkGate, its attribute `fork_gate`.
struct ForkGate {
    void (*enter)();
    void (*leave)();
};
inline constexpr const char* kForkGate = "megengine.ForkGate";
extern const ForkGate* fork_gate;  // each native module has a pointer to it

// Held while a kernel runs. Waits while another thread forks; may nest.
class InKernel {
  public:
    InKernel() { fork_gate->enter(); }
    ~InKernel() { fork_gate->leave(); }
    InKernel(const InKernel&) = delete;
    InKernel& operator=(const InKernel&) = delete;
};

}  // namespace mge
