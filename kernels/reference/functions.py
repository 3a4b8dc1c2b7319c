"""Functions of one value in float32, with the operations of `csrc/float/functions.inc` and so the same bits.

Float32 only; other dtypes go through NumPy's functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

F32 = np.dtype(np.float32)
Function = Callable[[np.ndarray], np.ndarray]


def in_float32(function: Function, otherwise: Function) -> Function:
    """`function` for float32, `otherwise` for other dtypes."""

    def of(x: np.ndarray) -> np.ndarray:
        if x.dtype != F32:
            return otherwise(x)
        with np.errstate(all="ignore"):
            return function(np.atleast_1d(x)).reshape(x.shape)

    return of


def horner(factors: Sequence[float], x: np.ndarray) -> np.ndarray:
    p = np.full_like(x, factors[0])
    for factor in factors[1:]:
        p = p * x + x.dtype.type(factor)
    return p


# Factors of the polynomials, from the highest power on; of quotients above and below.
EXP = (0.00138144, 0.0083688, 0.0416684, 0.1666652, 0.49999993, 1, 1)
LOG = (0.23620364, 0.2853484, 0.40000388, 0.6666666, 2)
LOG1P = (0.28012202, 0.28001765, 0.40021529, 0.66666416, 2)
ERF = (
    (1.98678302e-06, 0.000284565986, 0.00388334571, 0.0531017532, 0.193545095, 1.12837914),
    (3.74201857e-05, 0.00118557161, 0.0152072553, 0.115350016, 0.50485743, 1),
)
TANH = (
    (0.133826643, 0.00349743594, 2.06354398e-05, 1.33837865e-08),
    (0.467159808, 0.0258842707, 0.000328848255, 7.79001141e-07),
)


def _power_of_two(n: np.ndarray) -> np.ndarray:
    return ((n + 127) << 23).view(F32)


def _exp(x: np.ndarray) -> np.ndarray:
    v = np.where(x < -104, np.float32(-104), x)
    v = np.where(v > 89, np.float32(89), v)
    n = (v * np.float32(1.44269504) + np.float32(12582912)) - np.float32(12582912)
    r = (v - n * np.float32(0.693359375)) - n * np.float32(-2.12194440e-4)
    p = horner(EXP, r)
    whole = np.where(np.isnan(n), 0, n).astype(np.int32)
    half = whole >> 1
    return p * _power_of_two(half) * _power_of_two(whole - half)


def _log(x: np.ndarray) -> np.ndarray:
    tiny = x < np.finfo(F32).smallest_normal
    bits = np.where(tiny, x * np.float32(8388608), x).view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23
    m = (bits - exponent * np.int32(1 << 23)).view(F32)
    e = np.where(tiny, exponent - 23, exponent).astype(F32)
    s = (m - 1) / (m + 1)
    p = horner(LOG, s * s)
    y = (s * p + e * np.float32(-2.12194440e-4)) + e * np.float32(0.693359375)
    y = np.where(np.isposinf(x), x, np.where(x == 0, np.float32(-np.inf), y))
    return np.where(x >= 0, y, np.float32(np.nan))


def _log1p(x: np.ndarray) -> np.ndarray:
    s = x / (x + 2)
    return s * horner(LOG1P, s * s)


def _erf(x: np.ndarray) -> np.ndarray:
    v = np.where(x < -4, np.float32(-4), x)
    v = np.where(v > 4, np.float32(4), v)
    s = v * v
    p, q = (horner(factors, s) for factors in ERF)
    y = v * p / q
    y = np.where(y < -1, np.float32(-1), y)
    return np.where(y > 1, np.float32(1), y)


def _in_pairs(s: np.ndarray, factors: Sequence[float]) -> np.ndarray:
    """1 + a s + b s^2 + c s^3 + d s^4."""
    a, b, c, d = map(s.dtype.type, factors)
    t = s * s
    return (s * a + 1) + t * ((s * c + b) + t * d)


def _tanh(x: np.ndarray) -> np.ndarray:
    v = np.where(x < np.float32(-9.1), np.float32(-9.1), x)
    v = np.where(v > np.float32(9.1), np.float32(9.1), v)
    p, q = (_in_pairs(v * v, factors) for factors in TANH)
    y = v * p / q
    y = np.where(y < -1, np.float32(-1), y)
    return np.where(y > 1, np.float32(1), y)


def _wide_erf(x: np.ndarray) -> np.ndarray:
    flat = np.asarray(x, np.float64).ravel()
    return np.fromiter((math.erf(v) for v in flat), np.float64, flat.size).reshape(np.shape(x)).astype(x.dtype)


def _wide_sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


exp = in_float32(_exp, np.exp)
LEAST_NORMAL = np.float32(-87.33654)  # from here on exp is no subnormal number, which takes many processors long
# of softmax; a sum with 1 has the same bits
exp_of_distance = in_float32(lambda x: np.where(x < LEAST_NORMAL, np.float32(0), _exp(x)), np.exp)
log = in_float32(_log, np.log)
tanh = in_float32(_tanh, np.tanh)
erf = in_float32(_erf, _wide_erf)
sigmoid = in_float32(lambda x: 1 / (1 + _exp(-x)), _wide_sigmoid)
silu = in_float32(lambda x: x * (1 / (1 + _exp(-x))), lambda x: x * _wide_sigmoid(x))
gelu = in_float32(
    lambda x: x * np.float32(0.5) * (1 + _erf(x * np.float32(0.70710678))),
    lambda x: (x * 0.5 * (1 + _wide_erf(x / math.sqrt(2)))).astype(x.dtype),
)
softplus = in_float32(
    lambda x: np.where(x < 0, np.float32(0), x) + _log1p(_exp(-np.abs(x))),
    lambda x: np.logaddexp(x, 0).astype(x.dtype),
)


def _whole_power(x: np.ndarray) -> np.ndarray:
    """log|x| in float64."""
    whole = np.abs(x)
    tiny = whole < np.finfo(F32).smallest_normal
    bits = np.where(tiny, whole * np.float32(8388608), whole).view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23
    m = (bits - exponent * np.int32(1 << 23)).view(F32).astype(np.float64)
    s = (m - 1) / (m + 1)
    p = horner([1 / n for n in range(17, 0, -2)], s * s)
    log = np.where(tiny, exponent - 23, exponent).astype(np.float64) * 0.6931471805599453 + 2 * s * p
    log = np.where(whole == 0, -np.inf, np.where(np.isinf(whole), np.inf, log))
    return np.where(np.isnan(x), np.nan, log)


def _pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    v = y.astype(np.float64) * _whole_power(x)
    undefined = np.isnan(v)
    v = np.minimum(np.where((v < -160) | undefined, -160, v), 160)
    n = (v * 1.4426950408889634 + 6755399441055744) - 6755399441055744
    q = horner([1 / math.factorial(k) for k in range(12, -1, -1)], v - n * 0.6931471805599453)
    size = (q * ((n.astype(np.int64) + 1023) << 52).view(np.float64)).astype(F32)
    size = np.where(undefined, np.float32(np.nan), size)
    integral, half = np.floor(y) == y, y * np.float32(0.5)
    signed = np.where(integral & (np.floor(half) != half) & np.signbit(x), -size, size)
    real = np.where((x < 0) & ~np.isinf(x) & ~integral, np.float32(np.nan), signed)
    return np.where((y == 0) | (x == 1) | ((x == -1) & np.isinf(y)), np.float32(1), real)


def _quarters(x: np.ndarray, fourths: np.ndarray) -> np.ndarray:
    """X to the power fourths / 4, of 1 to 3 fourths or as many below 0, by square roots in float32."""
    x = np.where((x == 0) | np.isneginf(x), np.abs(x), x)
    size, below, root = np.abs(fourths), fourths < 0, np.sqrt(x)
    half = np.where(below, np.float32(1) / root, root)
    return np.where(size == 3, _three_quarters(x, below), np.where(size == 1, np.sqrt(half), half))


def _three_quarters(x: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The square root of x^(3/2), or of its reciprocal, of x times a power of two with which nothing overflows."""
    exponent = np.where(x > np.float32(2**64), -64, np.where(x > np.float32(2**-64), 0, 96))
    v = np.ldexp(x, exponent)
    whole = v * np.sqrt(v)
    back = np.where(below, exponent, -exponent) * 3 // 4
    return np.ldexp(np.sqrt(np.where(below, np.float32(1) / whole, whole)), back)


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """X to the power y, elementwise; of integers the whole part, and the smallest number for 0 to a negative power."""
    with np.errstate(all="ignore"):
        if x.dtype.kind == "i" and (y < 0).any():
            ones = np.where((x == -1) & (y % 2 == 1), -1, np.abs(x) == 1)
            below = np.where(x == 0, np.iinfo(x.dtype).min, ones).astype(x.dtype)
            return np.where(y < 0, below, np.power(x, np.maximum(y, 0)))
        if x.dtype != F32:
            return np.power(x, y)
        x, y = np.broadcast_arrays(x, y)
        shape, (x, y) = x.shape, (np.array(np.atleast_1d(v)) for v in (x, y))
        fourths = y * np.float32(4)
        few = (np.abs(fourths) <= 3) & (fourths == np.floor(fourths)) & (fourths != 0)
        result = np.empty_like(x)
        result[few], result[~few] = _quarters(x[few], fourths[few]), _pow(x[~few], y[~few])
        return result.reshape(shape)
