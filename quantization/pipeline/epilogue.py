"""The numbers of an integer kernel's epilogue, by the integer specification, checked where they are put in a graph."""

from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import QuantizationError
from megengine.kernels.reference import integer

_SMALLEST_NORMAL = np.finfo(np.float32).tiny
_INT32 = 2**31 - 1
_LARGEST_SUM = 2**53  # of 16-bit values, in int64: the specification adds them in float64


@dataclass(frozen=True, slots=True)
class Epilogue:
    """b int32 [O], M and B float32 [O] of `y = rint(clamp(float32(acc + b) * M + B)) + z_y`."""

    b: np.ndarray
    M: np.ndarray
    B: np.ndarray


def bounds(dtype: QuantizedDType, clamp: tuple[float | None, float | None] = (None, None)) -> tuple[int, int]:
    """Lo and hi relative to the zero point, with the real bounds of a clamp."""
    ends = dtype.qmin - dtype.zero_point, dtype.qmax - dtype.zero_point
    steps = [None if end is None else int(np.rint(np.clip(end / dtype.only_scale, -(2**20), 2**20))) for end in clamp]
    lo = ends[0] if steps[0] is None else max(ends[0], steps[0])
    hi = ends[1] if steps[1] is None else min(ends[1], steps[1])
    return min(lo, hi), hi


def epilogue(
    name: str,
    weight: np.ndarray,
    weight_dtype: QuantizedDType,
    data: QuantizedDType,
    bias: np.ndarray | None,
    output: QuantizedDType | None,
    *,
    int_bias: bool,
) -> Epilogue:
    """M, b and B of a layer with an int8 `weight`, output channels first; `output` None stands for float32 results.

    With `int_bias` the real bias goes into the accumulator (b), else into the output (B). Raises QuantizationError,
    which begins with `name`, if no M is a normal positive number, B is not finite, or the accumulator can overflow.
    """
    channels = weight.shape[0]
    s_w = np.broadcast_to(np.asarray(weight_dtype.scale, np.float32), (channels,))
    s_y = 1.0 if output is None else output.only_scale
    M = integer.multiplier(data.scale, s_w, s_y).astype(np.float32)
    tiny = (M >= 0) & (M < _SMALLEST_NORMAL)
    if not tiny.all():  # dead channels: 2^31 times the smallest normal number is still no part of a step
        M = np.where(tiny, _SMALLEST_NORMAL, M)
    none = np.zeros(channels)
    real = none if bias is None else np.broadcast_to(bias, (channels,))
    steps = integer.int_bias(real, data.only_scale, s_w) if int_bias else none
    B = integer.float_bias(none if int_bias else real, s_y)
    _check(name, weight, data, M, B, steps)
    return Epilogue(steps.astype(np.int32), np.ascontiguousarray(M), np.ascontiguousarray(B))


def _reads(data: QuantizedDType) -> str:
    """What a message says of the values that a layer reads."""
    lo, hi = ((end - data.zero_point) * data.only_scale for end in (data.qmin, data.qmax))
    return f" (it reads values from {lo:.3g} to {hi:.3g})"


def _check(
    name: str, weight: np.ndarray, data: QuantizedDType, M: np.ndarray, B: np.ndarray, steps: np.ndarray
) -> None:
    bad = ~(np.isfinite(M) & (_SMALLEST_NORMAL <= M))
    if bad.any():
        raise QuantizationError(
            f"{name}: multiplier of channel {int(np.argmax(bad))} is {M[bad][0]}; expected a normal positive float32. "
            f"Its scales are too small or too far apart{_reads(data)}: look at the weights of this layer and at the "
            "calibration data, or exclude it"
        )
    if not np.isfinite(B).all():
        at = int(np.argmax(~np.isfinite(B)))
        raise QuantizationError(
            f"{name}: bias of channel {at} is {B[at]} output steps; expected a finite number{_reads(data)}"
        )
    reach = max(data.qmax - data.zero_point, data.zero_point - data.qmin)
    taps = np.abs(weight.astype(np.int64)).reshape(len(weight), -1).sum(axis=1)
    largest = taps * max(reach, abs(data.qmax), abs(data.qmin)) + np.abs(steps)
    most = _INT32 if data.itemsize == 1 else _LARGEST_SUM
    if (largest > most).any() or (np.abs(steps) > _INT32).any():
        at = int(np.argmax(np.where(np.abs(steps) > _INT32, np.inf, largest)))
        part = "bias" if abs(steps[at]) > _INT32 // 2 else "accumulator"
        raise QuantizationError(
            f"{name}: the {part} of channel {at} can reach {largest[at]:.3g}, more than int32 holds. "
            "Its weight scale is too small for its bias, or it sums too many products; "
            "use the profile with a float bias, or exclude the layer"
        )
