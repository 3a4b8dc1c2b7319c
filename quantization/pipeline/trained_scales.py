"""Scales while a network is trained: moving averages of what is seen, or numbers that are learnt."""

from __future__ import annotations

import numpy as np

from megengine import functional as F
from megengine.core.dtype import QuantizedDType, quantized
from megengine.core.errors import CalibrationError, OptionError, QuantizationError, nearest
from megengine.module import Module
from megengine.quantization.pipeline.spec import Plain
from megengine.quantization.ranges import RangeMethod, TensorStatistics, activation_dtype
from megengine.tensor import Parameter, Tensor

METHODS = ("ste", "tqt", "lsq", "pact")
"""How scales are found: moving averages, with gradients straight through (Jacob et al. 2018); trained thresholds (Jain
et al. 2020); learned step sizes (Esser et al. 2020); a learned clipping point of activations (Choi et al. 2018).
"""

_SMALLEST = 2.0**-60  # of a learnt scale: a product of two is a normal float32
_MOMENTUM = 0.9


def require_method(method: str) -> None:
    """Raises OptionError if a method is none of `METHODS`."""
    if method not in METHODS:
        raise OptionError(f"method: expected one of {', '.join(METHODS)}, got {method!r}{nearest(method, METHODS)}")


class TrainedScale(Module):
    """The scale of an edge, or the scales of a weight: `value` of the tape, and the dtype that it gives.

    Its state: `scale` (what lsq learns), `threshold` (tqt: the logarithm of the scale to base 2), `clip` (pact: the
    largest value), and of an edge `zero` and `range`, the smallest and largest value, as far as they are used.

    Args:
        method: one of `METHODS`.
        what: the edge, or the layer whose weight it is.
        dtype: what it starts from; its type and axis stay.
    """

    def __init__(self, method: str, what: str, dtype: QuantizedDType) -> None:
        super().__init__()
        self.what, self.method = what, method
        self._name, self._axis, self._reach = dtype.name, dtype.axis, float(dtype.qmax)
        self._take(dtype)

    def _take(self, dtype: QuantizedDType) -> None:
        scale = np.asarray(dtype.scale, np.float32)
        if self.method == "tqt":
            self.threshold = Parameter(np.log2(scale))
        elif self.method == "pact":
            self.clip = Parameter(scale * np.float32(self._reach))
        else:
            self.scale = Parameter(scale) if self.method == "lsq" else Tensor(scale)

    @property
    def learns(self) -> bool:
        """Whether the scale gets a gradient."""
        return self.method != "ste"

    def value(self) -> Tensor:
        """The scale, or the scales along the axis, float32."""
        if self.method == "ste":
            return self.scale
        if self.method == "tqt":
            return F.maximum(F.exp(self.threshold * float(np.log(2.0))), _SMALLEST)
        learnt = self.scale if self.method == "lsq" else self.clip * (1 / self._reach)
        return F.maximum(F.abs(learnt), _SMALLEST)

    def dtype(self, value: Tensor) -> QuantizedDType:
        """The dtype of a scale that `value` gave. Raises QuantizationError if training diverged."""
        return self._checked(value, 0)

    def _checked(self, value: Tensor, zero: int) -> QuantizedDType:
        scale = value.numpy()
        if not np.all(np.isfinite(scale)):
            wrong = scale[~np.isfinite(scale)].reshape(-1)[0]
            raise QuantizationError(
                f"{self.what}: the scale that was learnt is {wrong}; expected finite numbers: training diverged, "
                "lower the learning rate"
            )
        return quantized(self._name, scale, zero, self._axis)


class EdgeScale(TrainedScale):
    """The scale and zero point of an edge, and the range from which they follow while it moves.

    The range grows ("minmax"), or follows what is seen ("ema", and "mse", which starts with the range of least squared
    error); other methods of ranges keep that of calibration.
    """

    def __init__(self, method: str, name: str, spec: Plain) -> None:
        self._spec = spec
        unknown = _dtype_of(name, 0.0, 0.0, spec)
        if method == "pact" and (unknown.qmin < 0 or spec.scheme != "u8"):
            method = "ste"  # the clipping point is that of values that are never negative
        super().__init__(method, name, unknown)
        self.zero, self.range = Tensor(np.int32(0)), Tensor(np.array([np.inf, -np.inf], np.float32))

    @property
    def known(self) -> bool:
        """Whether a value was seen, or a state loaded."""
        low, high = self.range.numpy()
        return bool(low <= high)

    def start(self, seen: TensorStatistics) -> None:
        """Take the scale that statistics of calibration give. Raises CalibrationError if they saw nothing."""
        dtype = activation_dtype(seen, self._spec.method, self._spec.scheme)
        ends = (dtype.qmin - dtype.zero_point) * dtype.only_scale, (dtype.qmax - dtype.zero_point) * dtype.only_scale
        if self._spec.method.name == "minmax":
            ends = seen.minimum, seen.maximum
        self.range._reset(Tensor(np.array(ends, np.float32)))
        self._set(dtype)

    def _set(self, dtype: QuantizedDType) -> None:
        fresh = TrainedScale(self.method, self.what, dtype)
        for name, tensor in fresh.state_dict(keep_var=True).items():
            getattr(self, name)._reset(tensor.detach())
        self.zero._reset(Tensor(np.int32(dtype.zero_point)))

    def see(self, low: float, high: float) -> None:
        """Move the range by the smallest and largest value of a batch."""
        if self.learns or self._spec.method.name not in ("minmax", "ema", "mse"):
            return
        before, now = self.range.numpy(), np.array([low, high], np.float32)
        if self._spec.method.name != "minmax":
            moved = before + np.float32(1 - _MOMENTUM) * (now - before)
        else:
            moved = np.array([min(before[0], now[0]), max(before[1], now[1])], np.float32)
        self.range._reset(Tensor(moved))
        self._set(_dtype_of(self.what, float(moved[0]), float(moved[1]), self._spec))

    def dtype(self, value: Tensor) -> QuantizedDType:
        """The dtype of a scale that `value` gave. Raises CalibrationError if no value was seen yet."""
        if not self.known:
            raise CalibrationError(
                f"calibration: no value reached {self.what!r}; give prepare_qat calibration data, run a batch in "
                "training mode, or load a state"
            )
        return self._checked(value, int(self.zero.numpy()))

    def _module_info_string(self) -> str:
        return f"{self.method}, {self._name}"


def _dtype_of(edge: str, low: float, high: float, spec: Plain) -> QuantizedDType:
    """The dtype of a range, by the edge's scheme."""
    seen = TensorStatistics(edge)
    seen.update(np.array([low, high], np.float32))
    return activation_dtype(seen, RangeMethod("minmax"), spec.scheme)
