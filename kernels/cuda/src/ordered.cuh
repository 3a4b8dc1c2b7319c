// Numbers as unsigned keys in the same order: -0.0 is 0.0, and every NaN comes last, as NumPy sorts. Key: unsigned for
// types of up to four bytes, unsigned long long for longer ones.
#pragma once
template <int BYTES>
struct KeyOf {
    using type = unsigned;
};
template <>
struct KeyOf<8> {
    using type = unsigned long long;
};
COC_FN unsigned key_of_bits(unsigned bits) { return bits & 0x80000000u ? ~bits : bits | 0x80000000u; }
COC_FN unsigned long long key_of_bits(unsigned long long bits) { return bits >> 63 ? ~bits : bits | 1ull << 63; }

template <class T>
struct Ordered {  // integers and bool
    using Key = typename KeyOf<sizeof(T)>::type;
    static COC_FN Key of(T v, bool descending) {
        const Key top = (Key)1 << (8 * sizeof(Key) - 1), key = (T)-1 < (T)0 ? (Key)v ^ top : (Key)v;
        return descending ? ~key : key;
    }
    static COC_FN bool same(T a, T b) { return a == b; }
};
COC_FN unsigned key_of_float(float v, bool descending) {
    if (v != v) return ~0u;
    const float w = v == 0 ? 0.0f : descending ? -v : v;
    return key_of_bits(__float_as_uint(w));
}
template <>
struct Ordered<float> {
    using Key = unsigned;
    static COC_FN Key of(float v, bool descending) { return key_of_float(v, descending); }
    static COC_FN bool same(float a, float b) { return a == b || (a != a && b != b); }
};
template <>
struct Ordered<f16> {
    using Key = unsigned;
    static COC_FN Key of(f16 v, bool descending) { return key_of_float(widen(v), descending); }
    static COC_FN bool same(f16 a, f16 b) { return Ordered<float>::same(widen(a), widen(b)); }
};
template <>
struct Ordered<bf16> {
    using Key = unsigned;
    static COC_FN Key of(bf16 v, bool descending) { return key_of_float(widen(v), descending); }
    static COC_FN bool same(bf16 a, bf16 b) { return Ordered<float>::same(widen(a), widen(b)); }
};
template <>
struct Ordered<double> {
    using Key = unsigned long long;
    static COC_FN Key of(double v, bool descending) {
        if (v != v) return ~0ull;
        const double w = v == 0 ? 0.0 : descending ? -v : v;
        return key_of_bits((unsigned long long)__double_as_longlong(w));
    }
    static COC_FN bool same(double a, double b) { return a == b || (a != a && b != b); }
};
