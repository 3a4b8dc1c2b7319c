// Update rules of the optimizers: one pass over a parameter, its gradient and its state. Every rule follows
// the NumPy rule of its class operation by operation, so both give the same bits at every instruction set.
#pragma once
#include <cstdint>

namespace mge {

// `Update::scalars` of each rule, in this order:
//   kSgd       lr
//   kMomentum  lr, momentum                                         state: v
//   kNesterov  lr, momentum                                         state: v
//   kAdam      b1, 1 - b1, b2, 1 - b2, root factor, eps, ratio factor, keep    state: m, v
//   kMoments   the first seven of kAdam, decay; the result is the direction, not the new value    state: m, v
//   kAdagrad   rate, eps                                            state: sum
//   kAdadelta  lr, rho, 1 - rho, eps                                state: v, past
enum class Rule : int { kSgd, kMomentum, kNesterov, kAdam, kMoments, kAdagrad, kAdadelta };

struct Update {
    const float* w;
    const float* g;
    float* state[2];
    float* dst;  // may be w
    std::int64_t size;
    float decay;  // decay * w is added to the gradient unless it is 0
    const float* scalars;
};

using UpdateKernel = void (*)(Rule rule, const Update& u);
void update_base(Rule rule, const Update& u);
void update_avx2(Rule rule, const Update& u);
void update_avx512(Rule rule, const Update& u);
UpdateKernel active_update();

}  // namespace mge
