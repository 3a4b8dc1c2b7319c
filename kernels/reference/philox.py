"""Counter-based random numbers in NumPy: Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011), uniform and normal.

Element i is a function of the key and of i. Only correctly rounded float32 operations are used, in a fixed order, so
that native kernels give the same bits.
"""

from __future__ import annotations

import numpy as np

f32, u32, u64 = np.float32, np.uint32, np.uint64
_LANES = 64  # counters whose words lie together: word j of counter l is element 64 j + l of their 256


def _times(factor: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """High and low words of the products."""
    product = x.astype(u64) * u64(factor)
    return (product >> u64(32)).astype(u32), product.astype(u32)


def philox(key: int, counters: np.ndarray) -> np.ndarray:
    """Four words uint32 [4, n] for each 64-bit counter [n]; the key has 64 bits."""
    zero = np.zeros(counters.shape, u32)
    c0, c1, c2, c3 = counters.astype(u32), (counters >> u64(32)).astype(u32), zero, zero
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        (a_high, a_low), (b_high, b_low) = _times(0xD2511F53, c0), _times(0xCD9E8D57, c2)
        c0, c1, c2, c3 = b_high ^ c1 ^ u32(k0), b_low, a_high ^ c3 ^ u32(k1), a_low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


def _words(key: int, size: int) -> np.ndarray:
    """Words [chunks, 4, 64] of at least `size` elements."""
    chunks = -(-size // (4 * _LANES))
    return philox(key, np.arange(chunks * _LANES, dtype=u64)).reshape(4, chunks, _LANES).transpose(1, 0, 2)


def uniform(key: int, size: int) -> np.ndarray:
    """float32 [size], multiples of 2**-24 in [0, 1)."""
    return ((_words(key, size) >> u32(8)).astype(f32) * f32(2**-24)).reshape(-1)[:size]


def _radius(x: np.ndarray) -> np.ndarray:
    """sqrt(-2 ln u), u = (x + 1/2) / 2**32; ln m by the series of 2 atanh((m - 1) / (m + 1)), m around 1."""
    u = x.astype(f32) * f32(2**-32) + f32(2**-33)
    bits = u.view(u32)
    e = (bits - u32(0x3F3504F3)).view(np.int32) >> 23
    m = (bits - (e.view(u32) << u32(23))).view(f32)
    s = (m - f32(1)) / (m + f32(1))
    q = s * s
    p = q * (f32(1) / f32(9)) + f32(1) / f32(7)
    for n in (5, 3, 1):
        p = p * q + f32(1) / f32(n)
    ln = e.astype(f32) * f32(0.693147181) + f32(2) * s * p
    return np.sqrt(f32(-2) * ln)


def _polynomial(q: np.ndarray, *coefficients: np.float32) -> np.ndarray:
    out = q * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        out = out * q + c
    return out


def _spread(r: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R (cos, sin) of an angle uniform over the circle: 30 bits select the point in a quadrant, two are the signs."""
    a = ((x & u32(0x3FFFFFFF)).astype(np.int32) - np.int32(0x20000000)).astype(f32) * f32(1.46291808e-9)
    q = a * a
    one = f32(1)
    sine = _polynomial(q, one / f32(362880), -one / f32(5040), one / f32(120), -one / f32(6), one) * a
    cosine = _polynomial(q, one / f32(40320), -one / f32(720), one / f32(24), f32(-0.5), one)
    h = r * f32(0.707106781)
    first, second = (cosine - sine) * h, (cosine + sine) * h
    sign = u32(0x80000000)
    return (first.view(u32) ^ (x & sign)).view(f32), (second.view(u32) ^ (x << u32(1) & sign)).view(f32)


def normal(key: int, size: int) -> np.ndarray:
    """float32 [size], standard normal (Box and Muller 1958), at most 6.77 in magnitude."""
    words = _words(key, size)
    out = np.empty(words.shape, f32)
    for j in (0, 2):
        out[:, j], out[:, j + 1] = _spread(_radius(words[:, j]), words[:, j + 1])
    return out.reshape(-1)[:size]
