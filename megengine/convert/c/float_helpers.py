"""C functions on float32 numbers: the operations of `kernels.reference.functions`, in their order."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine.convert.c.helpers import HELPERS, Helper
from megengine.kernels.reference.functions import ERF, EXP, LOG, LOG1P, TANH

# what stands in front of steps in float: two operations that the compiler makes one round differently
ORDER = """
#if defined(__FAST_MATH__)
#error "compile this file without -ffast-math: its operations in float have one order"
#endif
/* 16, of processors with float16: as 0 for all wider types */
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16
#error "compile this file so that operations in float round to float, for example with -msse2 -mfpmath=sse"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
"""


def literal(value: Any) -> str:
    """A finite float32 number in C."""
    return f"{float(np.float32(value))!r}f"


def horner(factors: Sequence[float], x: str) -> str:
    """A polynomial as `kernels.reference.functions.horner` computes it."""
    text = literal(factors[0])
    for factor in factors[1:]:
        text = f"({text} * {x} + {literal(factor)})"
    return text


def _pairs(s: str, t: str, factors: Sequence[float]) -> str:
    a, b, c, d = map(literal, factors)
    return f"({s} * {a} + 1.0f) + {t} * (({s} * {c} + {b}) + {t} * {d})"


def _bounded(least: str, most: str, name: str = "v") -> str:
    return f"{name} = {name} < {least} ? {least} : {name};\n    {name} = {name} > {most} ? {most} : {name};"


FLOAT_HELPERS = {
    "float": Helper("""
static float ${p}float(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, 4);
    return v;
}
"""),
    "exp": Helper(
        f"""
static float ${{p}}exp(float v)
{{
    float n, r, p;
    int32_t whole, half;
    {_bounded("-104.0f", "89.0f")}
    n = (v * {literal(1.44269504)} + 12582912.0f) - 12582912.0f;
    r = (v - n * 0.693359375f) - n * {literal(-2.12194440e-4)};
    p = {horner(EXP, "r")};
    whole = n != n ? 0 : (int32_t)n;
    half = (whole - (whole & 1)) / 2;
    p = p * ${{p}}float((uint32_t)(half + 127) << 23);
    return p * ${{p}}float((uint32_t)(whole - half + 127) << 23);
}}
""",
        ("float",),
    ),
    "log": Helper(
        f"""
static float ${{p}}log(float x)
{{
    const float v = x < {literal(np.finfo(np.float32).tiny)} ? x * 8388608.0f : x;
    uint32_t bits;
    int64_t rest, whole;
    float m, e, s, t;
    if (!(x > 0.0f))
        return ${{p}}float(x == 0.0f ? 0xff800000u : 0x7fc00000u);
    memcpy(&bits, &v, 4);
    if (bits == 0x7f800000u)
        return x;
    rest = (int64_t)bits - 0x3f3504f3;
    whole = (rest - (rest & 0x7fffff)) / 8388608;
    m = ${{p}}float((uint32_t)((int64_t)bits - whole * 8388608));
    e = (float)(x < {literal(np.finfo(np.float32).tiny)} ? whole - 23 : whole);
    s = (m - 1.0f) / (m + 1.0f);
    t = s * s;
    t = s * {horner(LOG, "t")};
    return (t + e * {literal(-2.12194440e-4)}) + e * 0.693359375f;
}}
""",
        ("float",),
    ),
    "log1p": Helper(f"""
static float ${{p}}log1p(float x)
{{
    const float s = x / (x + 2.0f), t = s * s;
    return s * {horner(LOG1P, "t")};
}}
"""),
    "erf": Helper(f"""
static float ${{p}}erf(float v)
{{
    float s, y;
    {_bounded("-4.0f", "4.0f")}
    s = v * v;
    y = v * {horner(ERF[0], "s")} / {horner(ERF[1], "s")};
    {_bounded("-1.0f", "1.0f", "y")}
    return y;
}}
"""),
    "tanh": Helper(f"""
static float ${{p}}tanh(float v)
{{
    float s, t, y;
    {_bounded(literal(-9.1), literal(9.1))}
    s = v * v;
    t = s * s;
    y = v * ({_pairs("s", "t", TANH[0])}) / ({_pairs("s", "t", TANH[1])});
    {_bounded("-1.0f", "1.0f", "y")}
    return y;
}}
"""),
    "sigmoid": Helper(
        """
static float ${p}sigmoid(float x)
{
    return 1.0f / (1.0f + ${p}exp(-x));
}
""",
        ("exp",),
    ),
    "clip": Helper("""
static float ${p}clip(float x, float lo, float hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}
"""),
    "hsigmoid": Helper(
        f"""
static float ${{p}}hsigmoid(float x)
{{
    return ${{p}}clip(x + 3.0f, 0.0f, 6.0f) * {literal(1 / 6)};
}}
""",
        ("clip",),
    ),
    "sqrt": Helper(
        """
/* of float64 first, which has so many bits that rounding twice rounds once */
static float ${p}sqrt(float x)
{
    uint32_t bits;
    ${p}real r;
    ${p}wide w;
    memcpy(&bits, &x, 4);
    if (x == 0.0f || bits >= 0x7f800000u)
        return x < 0.0f ? ${p}float(0x7fc00000u) : x;
    r = ${p}of_bits(bits);
    w = ${p}wide_sqrt(${p}widened((uint64_t)r.m, r.e, 0));
    r = ${p}rounded((int64_t)w.m, w.e);
    return ${p}float(((uint32_t)(r.e + 150) << 23) | ((uint32_t)r.m & 0x7fffffu));
}
""",
        ("of_bits", "wide_sqrt", "float"),
    ),
    "sum": Helper("""
/* the sum of n numbers that lie side by side, in the order in which NumPy adds them */
static float ${p}sum(const ${p}f32 *x, int32_t n)
{
    float r[8], s = 0.0f;
    int32_t i, k, first = n / 2 - n / 2 % 8;
    if (n > 128) {
        s = ${p}sum(x, first);
        return s + ${p}sum(x + first, n - first);
    }
    i = 0;
    if (n >= 8) {
        for (k = 0; k < 8; ++k)
            r[k] = x[k];
        for (i = 8; i + 8 <= n; i += 8)
            for (k = 0; k < 8; ++k)
                r[k] += x[i + k];
        s = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    }
    for (; i < n; ++i)
        s += x[i];
    return s;
}
"""),
}
HELPERS.update(FLOAT_HELPERS)
