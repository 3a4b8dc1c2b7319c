"""From a range of real numbers to a scale and a zero point, always in float32."""

from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import QuantizedDType, quantized
from megengine.core.errors import OptionError, nearest

SMALLEST_SCALE = 2.0**-100
"""Below this a float32 product of two scales could be zero."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How real numbers map to integers.

    Args:
        dtype: name of the quantized dtype: "qint8", "qint8_narrow" (weights: -127..127), "quint8", "qint16" or "qint4".
        symmetric: zero point 0, so signed integers cover [-a, a] and unsigned ones [0, a].
        qmin, qmax: integer bounds.
        reach: what the largest magnitude of a symmetric range maps to; None stands for qmax.

    Example:
        >>> UNSIGNED.dtype, UNSIGNED.qmax
        ('quint8', 255)
    """

    dtype: str
    symmetric: bool
    qmin: int
    qmax: int
    reach: float | None = None

    @property
    def steps(self) -> int:
        """Number of steps between the smallest and the largest integer."""
        return self.qmax - self.qmin


UNSIGNED = Scheme("quint8", True, 0, 255)
SIGNED = Scheme("qint8", True, -128, 127)
ASYMMETRIC = Scheme("quint8", False, 0, 255)
ASYMMETRIC_SIGNED = Scheme("qint8", False, -128, 127)
WIDE = Scheme("qint16", True, -32768, 32767)
WEIGHT = Scheme("qint8_narrow", True, -127, 127)
WEIGHT_7 = Scheme("qint7", True, -64, 63)
NARROW_WEIGHT = Scheme("qint4", True, -8, 7)

SCHEMES = {
    "u8": UNSIGNED,
    "s8": SIGNED,
    "u8_asymmetric": ASYMMETRIC,
    "s8_asymmetric": ASYMMETRIC_SIGNED,
    "s16": WIDE,
    "weight": WEIGHT,
    "weight7": WEIGHT_7,
    "weight4": NARROW_WEIGHT,
}


def scheme(name: str) -> Scheme:
    """Scheme by its name in `SCHEMES`."""
    if name not in SCHEMES:
        raise OptionError(f"scheme: unknown {name!r}; expected one of {', '.join(SCHEMES)}{nearest(name, SCHEMES)}")
    return SCHEMES[name]


def scale_and_zero(
    lo: np.ndarray | float, hi: np.ndarray | float, how: Scheme, *, smallest: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Float32 scales and int32 zero points of ranges [lo, hi] (scalars or one entry per channel).

    Real zero is always representable. A range that holds only zero gets scale 1 / qmax, so that nothing
    divides by zero and all its integers are zero; with `smallest`, no scale is below that in any range.
    """
    lo = np.minimum(np.asarray(lo, np.float64), 0.0)
    hi = np.maximum(np.asarray(hi, np.float64), 0.0)
    if how.symmetric:
        one_sided = how.qmin == 0 and how.reach is None  # of a scheme with a reach, both ends count
        reach = hi if one_sided else np.maximum(-lo, hi)
        scale = (reach / (how.qmax if how.reach is None else how.reach)).astype(np.float32)
    else:
        scale = ((hi - lo) / how.steps).astype(np.float32)
    if smallest is None:
        scale = np.where(scale > 0, np.maximum(scale, np.float32(SMALLEST_SCALE)), np.float32(1 / how.qmax))
    else:
        scale = np.maximum(scale, np.float32(smallest))
    scale = scale.astype(np.float32)
    if how.symmetric:
        return scale, np.zeros(scale.shape, np.int32)
    zero = np.clip(np.rint(how.qmin - lo / scale.astype(np.float64)), how.qmin, how.qmax)
    return scale, zero.astype(np.int32)


def quantized_dtype(
    lo: np.ndarray | float, hi: np.ndarray | float, how: Scheme, *, axis: int | None = None
) -> QuantizedDType:
    """The frozen dtype of a range; per-channel scales when lo and hi are vectors (then give their axis)."""
    scale, zero = scale_and_zero(lo, hi, how)
    if axis is None:
        return quantized(how.dtype, float(scale), int(zero))
    if np.any(zero):
        raise OptionError("per-channel scales need a symmetric scheme; expected zero point 0 in every channel")
    return quantized(how.dtype, scale, 0, axis)


def round_trip(x: np.ndarray, scale: np.ndarray | float, zero: np.ndarray | int, how: Scheme) -> np.ndarray:
    """dequantize(quantize(x)) in float64, for error estimates (not the specification's float32)."""
    q = np.clip(np.rint(x / scale), how.qmin - zero, how.qmax - zero)
    return q * scale
