// A function of one value over an array of float32 or bfloat16, in a capsule for other native modules.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mge {

inline constexpr const char* kFunctionCapsule = "megengine.FloatFunction";

struct FloatFunction {
    void (*apply)(const float* src, float* dst, std::int64_t size, int function, float a);
    void (*apply_halves)(const std::uint16_t* src, std::uint16_t* dst, std::int64_t size, int function,
                         float a);
    int function;
    float a;

    void operator()(float* values, std::int64_t size) const { apply(values, values, size, function, a); }
    void operator()(std::uint16_t* values, std::int64_t size) const {
        apply_halves(values, values, size, function, a);
    }
    void operator()(std::byte* values, std::int64_t size, bool halves) const {
        if (halves)
            (*this)(reinterpret_cast<std::uint16_t*>(values), size);
        else
            (*this)(reinterpret_cast<float*>(values), size);
    }
};

}  // namespace mge
