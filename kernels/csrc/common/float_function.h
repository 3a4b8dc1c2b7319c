// A function of one value over an array, in a capsule for other native modules.
#pragma once
#include <cstdint>

namespace mge {

inline constexpr const char* kFunctionCapsule = "megengine.FloatFunction";

struct FloatFunction {
    void (*apply)(const float* src, float* dst, std::int64_t size, int function, float a);
    int function;
    float a;

    void operator()(float* values, std::int64_t size) const { apply(values, values, size, function, a); }
};

}  // namespace mge
