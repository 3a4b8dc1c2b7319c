// One unit of work of a plan: the interface between the executor in _core and every kernel, oneDNN's
// included.
//
// A Step is created once, when a plan is built (weights are packed then), and runs many times. It never
// allocates, never throws and never touches Python while running. It passes from one native module to
// another in a PyCapsule named kStepCapsule that owns it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mge {

inline constexpr const char* kStepCapsule = "megengine.Step";

class Step {
  public:
    virtual ~Step() = default;

    // Number of independent parts, at most the `threads` of its creation. Parts may run at the same
    // time on different threads and write disjoint outputs; the result does not depend on how they are
    // scheduled.
    virtual int parts() const { return 1; }

    // True for inputs that `run` must not get: whoever runs the step asks first where its maker says that it
    // may refuse, and lets the reference raise the error.
    virtual bool refuses(std::byte* const* buffers) const noexcept { return false; }

    // Bytes of scratch memory (64-byte aligned) that one running part needs.
    virtual std::size_t scratch_bytes() const { return 0; }

    // buffers: the step's inputs, then its outputs, in the order of its creation. An output may be
    // the same memory as an input only where the step's builder states it (in-place residual).
    virtual void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept = 0;
};

}  // namespace mge
