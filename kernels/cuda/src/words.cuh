// The types of so many bytes, which one load or store moves.
#pragma once
template <int BYTES>
struct Words;
template <>
struct Words<16> {
    using type = int4;
};
template <>
struct Words<8> {
    using type = int2;
};
template <>
struct Words<4> {
    using type = int;
};
template <>
struct Words<2> {
    using type = short;
};
template <>
struct Words<1> {
    using type = s8;
};
