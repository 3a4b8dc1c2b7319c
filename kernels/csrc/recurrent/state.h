// The state of a recurrent layer as integers, on the kernels of the 8-bit ops.
#pragma once
#include <memory>

#include "common/step.h"
#include "recurrent/kernels.h"

namespace mge {

// Integers of a state: its scale, the bounds of the integers relative to the zero point, and the zero point.
struct StateType {
    float scale;
    int lo, hi, zero_point;
    bool is_signed;

    int unsigned_zero() const { return zero_point + (is_signed ? 128 : 0); }
};

// Integer weights [outputs, hidden], and what a sum of each row is multiplied by.
struct StateWeights {
    const std::int8_t* rows = nullptr;
    const float* multipliers = nullptr;
    std::int64_t outputs = 0;
};

std::unique_ptr<State> make_rounding(const StateType& type);
// Products of `samples` states at a time; `last` has no outputs where all gates are one product.
std::unique_ptr<State> make_state(const StateType& type, std::int64_t hidden, std::int64_t samples,
                                  const StateWeights& gates, const StateWeights& last);

}  // namespace mge
