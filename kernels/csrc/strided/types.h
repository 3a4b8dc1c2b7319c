// Code for the types of numbers that steps along axes take, and what their largest and smallest ones are.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace mge {

// f(T()) for the type of a name.
template <class F>
nanobind::object for_number(const std::string& type, F f) {
    if (type == "float32") return f(float());
    if (type == "int32") return f(std::int32_t());
    if (type == "int64") return f(std::int64_t());
    if (type == "int8") return f(std::int8_t());
    if (type == "uint8") return f(std::uint8_t());
    throw nanobind::value_error(("float32, int32, int64, int8 or uint8 expected, got " + type).c_str());
}

template <class T>
bool above(T a, T b) {  // NaN is above all numbers
    return (a > b) | ((a != a) & (b == b));
}

template <class T>
bool below(T a, T b) {
    return (a < b) | ((a != a) & (b == b));
}

}  // namespace mge
