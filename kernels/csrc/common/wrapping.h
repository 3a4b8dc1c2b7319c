// Integers as NumPy has them, where C++ leaves the result open: sums, products and opposites wrap around, and
// a float that an integer type does not hold becomes its smallest number. Each file has these for its own
// instruction set.
#pragma once
#include <cstdint>
#include <limits>
#include <type_traits>

namespace mge {
namespace {

// What sums of T are computed in. Each cast below stands at its sum, so that compilers see how few bits are
// needed.
template <class T>
using SumOf = std::conditional_t<std::is_integral_v<T>,
                                 std::conditional_t<sizeof(T) < 8, std::uint32_t, std::uint64_t>, T>;

template <class T>
T sum_of(T a, T b) {
    return static_cast<T>(static_cast<SumOf<T>>(a) + static_cast<SumOf<T>>(b));
}

template <class T>
T difference_of(T a, T b) {
    return static_cast<T>(static_cast<SumOf<T>>(a) - static_cast<SumOf<T>>(b));
}

template <class T>
T product_of(T a, T b) {
    return static_cast<T>(static_cast<SumOf<T>>(a) * static_cast<SumOf<T>>(b));
}

template <class T>
T opposite_of(T x) {
    if constexpr (std::is_integral_v<T>)
        return difference_of(T(0), x);
    else
        return -x;
}

// A float without what stands behind its point; in a type of 32 bits or more.
template <class R, class T>
R whole_of(T x) {
    static_assert(sizeof(R) >= 4 && std::is_signed_v<R>);
    constexpr T kEnd = -static_cast<T>(std::numeric_limits<R>::min());
    return x >= -kEnd && x < kEnd ? static_cast<R>(x) : std::numeric_limits<R>::min();
}

}  // namespace
}  // namespace mge
