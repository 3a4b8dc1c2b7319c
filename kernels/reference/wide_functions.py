"""Functions of float32 computed in float64.

The operations are those of `csrc/float/wide_functions.inc`, and so are the bits. Float32 only; other dtypes go through
NumPy's functions.
"""

from __future__ import annotations

import math

import numpy as np

from megengine.kernels.reference.functions import F32, horner, in_float32

_FAR = 524288.0
_LN2, _HALF_PI = 0.6931471805599453, 1.5707963267948966
_ATAN = (
    *(-0.025316479573776474, 0.05024762118940128, -0.0650598296717084, 0.07673535428183285, -0.09089529956562307),
    *(0.11111048853751296, -0.14285712661684793, 0.19999999978392663, -0.3333333333322143, 0.999999999999999),
)
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163  # 216 bits behind the point


def _inverse_factorials(last: int, step: int = 1, *, signs: int = 1) -> list[float]:
    """1 / n! for n = last, last - step, ...; with signs -1, counted from the end, every second one is negative."""
    values = [1 / math.factorial(n) for n in range(last, -1, -step)]
    return [v * signs ** (len(values) - 1 - k) for k, v in enumerate(values)]


def _exp(v: np.ndarray) -> np.ndarray:
    shifted = v * 1.4426950408889634 + 6755399441055744
    n = shifted - 6755399441055744
    return horner(_inverse_factorials(12), v - n * _LN2) * ((shifted.view(np.int64) + 1023) << 52).view(np.float64)


def _log(u: np.ndarray) -> np.ndarray:
    bits = np.atleast_1d(u).view(np.uint64)
    exponent = (bits + np.uint64((1023 << 52) - 0x3FE6A09E667F3BCD)) >> np.uint64(52)
    m = (bits - (exponent << np.uint64(52)) + np.uint64(1023 << 52)).view(np.float64)
    e = exponent.astype(np.float64) - 1023
    s = (m - 1) / (m + 1)
    return e * _LN2 + 2 * s * horner([1 / n for n in range(17, 0, -2)], s * s)


def _log1p(x: np.ndarray) -> np.ndarray:
    u = 1 + x
    y = _log(u) + (x - (u - 1)) / u
    return np.where(u >= 0, np.where(u == 0, -np.inf, np.where(u == np.inf, np.inf, y)), np.nan)


def _signed(x: np.ndarray, size: np.ndarray) -> np.ndarray:
    size = size.astype(F32)
    return np.where(np.signbit(x), -size, size)


def _wide_log1p(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, x, _log1p(x.astype(np.float64)).astype(F32))


def _expm1(x: np.ndarray) -> np.ndarray:
    v = np.clip(x.astype(np.float64), -104, 92)
    near = v * horner(_inverse_factorials(8)[:-1], v)
    return np.where(x == 0, x, np.where(np.abs(v) < 0.0625, near, _exp(v) - 1).astype(F32))


def _hyperbolic(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = np.minimum(np.abs(x.astype(np.float64)), 92)
    return a, _exp(a)


def _sinh(x: np.ndarray) -> np.ndarray:
    a, e = _hyperbolic(x)
    return _signed(x, np.where(a < 0.0625, a * horner(_inverse_factorials(7, 2), a * a), (e - 1 / e) * 0.5))


def _cosh(x: np.ndarray) -> np.ndarray:
    _, e = _hyperbolic(x)
    return ((e + 1 / e) * 0.5).astype(F32)


def _asinh(x: np.ndarray) -> np.ndarray:
    a = np.abs(x.astype(np.float64))
    s = a * a
    return _signed(x, np.where(a == np.inf, a, _log1p(a + s / (1 + np.sqrt(s + 1)))))


def _acosh(x: np.ndarray) -> np.ndarray:
    t = x.astype(np.float64) - 1
    return np.where(t >= 0, _log1p(t + np.sqrt(t * (t + 2))), np.nan).astype(F32)


def _atanh(x: np.ndarray) -> np.ndarray:
    a = np.abs(x.astype(np.float64))
    return _signed(x, 0.5 * _log1p(np.where(a + a == 2, np.inf, (a + a) / (1 - a))))


# ---------------------------------------------------------------- sine, cosine, tangent


def _chunk(e: int, top: int, count: int) -> float:
    """Bits of 2^e * 2/pi with the weights 2^top and below."""
    last = top - count + 1
    return math.ldexp((_TWO_OVER_PI >> (216 - (e - last))) & ((1 << count) - 1), last)


_CHUNKS = np.array([[_chunk(e, 1, 29), _chunk(e, -28, 29), _chunk(e, -57, 53)] for e in range(-4, 105)])


def _turned(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A multiple of pi/2, of which the last two bits count, and the rest of |x|."""
    shift = np.float64(6755399441055744)
    size = np.abs(x)
    a = size.astype(np.float64)
    shifted = a * 0.6366197723675814 + shift
    n = shifted - shift
    quarters, rest = shifted.view(np.int64), (a - n * 1.5707963267341256) - n * 6.077100506506192e-11
    bits = size.view(np.int32)
    m = ((bits & 0x7FFFFF) | 0x800000).astype(np.float64)
    first, second, third = _CHUNKS.T[:, np.clip((bits >> 23) - 146, 0, 108)]
    high = m * first
    shifted = high + shift
    total = (high - (shifted - shift)) + m * second
    again = total + shift
    wide = np.where(np.isinf(size), np.nan, (total - (again - shift)) + m * third) * _HALF_PI
    far = size >= _FAR
    return np.where(far, shifted.view(np.int64) + again.view(np.int64), quarters), np.where(far, wide, rest)


def _sine_of(r: np.ndarray) -> np.ndarray:
    return r * horner(_inverse_factorials(13, 2, signs=-1), r * r)


def _cosine_of(r: np.ndarray) -> np.ndarray:
    return horner(_inverse_factorials(14, 2, signs=-1), r * r)


def _sine_behind(x: np.ndarray, quarters: int) -> np.ndarray:
    n, rest = _turned(x)
    n = n + quarters
    y = np.where(n & 1, _cosine_of(rest), _sine_of(rest))
    return np.where(n & 2, -y, y)


def _tan(x: np.ndarray) -> np.ndarray:
    n, rest = _turned(x)
    s, c, odd = _sine_of(rest), _cosine_of(rest), (n & 1).astype(bool)
    return _signed(x, np.where(odd, -c, s) / np.where(odd, s, c))


# ---------------------------------------------------------------- angles


def _angle(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    steep = y > x
    least, most = np.where(steep, x, y), np.where(steep, y, x)
    whole = np.where(least == most, np.where(most == 0, 0, 1), least / most)
    far = whole > 0.41421356237309503
    t = np.where(far, (whole - 1) / (whole + 1), whole)
    a = np.where(far, 0.7853981633974483, 0) + t * horner(_ATAN, t * t)
    return np.where(steep, _HALF_PI - a, a)


def _asin(x: np.ndarray) -> np.ndarray:
    a = np.abs(x.astype(np.float64))
    return _signed(x, _angle(a, np.sqrt((1 - a) * (1 + a))))


def _acos(x: np.ndarray) -> np.ndarray:
    v = x.astype(np.float64)
    return (2 * _angle(np.sqrt(1 - v), np.sqrt(1 + v))).astype(F32)


def atan2(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The angle of the point (x, y), elementwise."""
    if y.dtype != F32:
        return np.arctan2(y, x)
    with np.errstate(all="ignore"):
        a = np.asarray(_angle(np.abs(y.astype(np.float64)), np.abs(x.astype(np.float64))))
        return np.asarray(_signed(y, np.where(np.signbit(x), 2 * _HALF_PI - a, a)))


sin = in_float32(lambda x: _signed(x, _sine_behind(x, 0)), np.sin)
cos = in_float32(lambda x: _sine_behind(x, 1).astype(F32), np.cos)
tan = in_float32(_tan, np.tan)
asin = in_float32(_asin, np.arcsin)
acos = in_float32(_acos, np.arccos)
atan = in_float32(lambda x: _signed(x, _angle(np.abs(x.astype(np.float64)), np.ones(x.shape))), np.arctan)
sinh = in_float32(_sinh, np.sinh)
cosh = in_float32(_cosh, np.cosh)
asinh = in_float32(_asinh, np.arcsinh)
acosh = in_float32(_acosh, np.arccosh)
atanh = in_float32(_atanh, np.arctanh)
expm1 = in_float32(_expm1, np.expm1)
log1p = in_float32(_wide_log1p, np.log1p)
