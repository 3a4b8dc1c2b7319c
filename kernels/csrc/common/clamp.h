// Activations that kernels apply to sums in registers.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace mge {

enum class Clamp { kNone, kRelu, kRelu6 };

inline const std::vector<std::string>& clamp_names() {
    static const std::vector<std::string> names{"none", "relu", "relu6"};  // in the order of Clamp
    return names;
}

inline Clamp clamp_of(const std::string& name) {
    const auto& names = clamp_names();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
        throw std::invalid_argument("no clamp " + name + "; expected one of clamp_names()");
    return static_cast<Clamp>(found - names.begin());
}

template <typename T>
inline T clamped(T x, T zero, T six, Clamp clamp) {
    if (clamp == Clamp::kNone) return x;
    x = x < zero ? zero : x;
    return clamp == Clamp::kRelu6 ? (x > six ? six : x) : x;
}

}  // namespace mge
