"""Fake quantization as functions: values on the integers' grid, with gradients. MegEngine's names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.autodiff import Function
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import OptionError
from megengine.core.tensor.dtype import QuantDtypeMeta, create_quantized_dtype
from megengine.dispatch import apply
from megengine.quantization.modules.arithmetic import bias_dtype
from megengine.quantization.ranges import QParams, QuantMode, at, create_qparams
from megengine.tensor import DeferredValueError, Tensor


def fake_quant_tensor(inp: Tensor, qparams: QParams) -> Tensor:
    """Real values that `inp` (float32, any shape) has after quantization; the result carries `qparams`.

    It rounds exactly as `inp.astype(dtype)` and the quantized modules do (MegEngine divides here and multiplies by
    the reciprocal there, which differs in rare values next to a tie). Gradients pass where nothing is clamped.
    """
    out = apply("fake_quant_away", inp, dtype=_grid(qparams))
    out.qparams = qparams
    return out


def _grid(qparams: QParams) -> QuantizedDType:
    """The dtype whose values are taken: as `qparams.dtype`, but signed integers may have a zero point too."""
    if not isinstance(qparams, QParams):
        raise OptionError(
            f"fake_quant_tensor: got a {type(qparams).__name__} as qparams; expected those of an observer"
        )
    meta, zero = qparams.dtype_meta, qparams.zero
    if meta is None or qparams.scale is None or not zero or meta.zero_points or meta.is_own:
        return qparams.dtype
    shifted = QuantDtypeMeta(f"{meta.name}_shifted", None, meta.np_dtype_str, meta.qmin, meta.qmax)
    return create_quantized_dtype(shifted, qparams.scale.numpy(), zero)


def fake_quant_bias(bias: Tensor | None, inp: Tensor | None, w_qat: Tensor | None) -> Tensor | None:
    """Bias rounded to 32-bit integers of scale `s_inp * s_w`; unchanged where one of the scales is not known."""
    scales = [_scale(t) for t in (inp, w_qat)]
    if bias is None or any(s is None for s in scales):
        return bias
    dtype = bias_dtype(scales[0], scales[1])
    out = apply("fake_quant_away", bias.reshape(-1), dtype=dtype).reshape(bias.shape)
    out.qparams = create_qparams(QuantMode.SYMMERTIC, "qint32", Tensor(np.asarray(dtype.scale, np.float32)))
    return out


def _scale(tensor: Tensor | None) -> np.ndarray | None:
    qparams = None if tensor is None else tensor.qparams
    if isinstance(qparams, QParams) and qparams.scale is not None:
        return np.asarray(qparams.scale.numpy()).reshape(qparams.scale.shape if qparams.scale.size > 1 else ())
    return None


@at("megengine.quantization.utils")
class Round(Function):
    """Nearest integers, ties away from zero; the gradient passes unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return F.round(x)

    def backward(self, output_grads: Tensor) -> Tensor:
        """The gradient of the result."""
        return output_grads


def tqt_forward(qmin: int, qmax: int, inp: Tensor, scale: Tensor) -> Tensor:
    """Trained quantization thresholds (Jain et al. 2019): fake quantization with scale `2 ** scale`.

    Both `inp` and `scale` (one element) get gradients; that of the scale is
    `log(2) * 2**scale * (q - x / 2**scale)`, with q clamped and x / 2**scale counted only inside the range.
    """
    return _LearntScale(qmin, qmax, np.exp2, lambda s: s * np.log(2.0))(inp, scale)


def lsq_forward(
    qmin: int,
    qmax: int,
    inp: Tensor,
    step_size: Tensor,
    zero_point: Tensor | None = None,
    scale_grad: Tensor | None = None,
) -> Tensor:
    """Learned step size quantization (Esser et al. 2020): fake quantization whose scale gets a gradient too.

    The gradient of the step is `q - x / step` inside the range and the clamped integer outside (with a zero point
    as in Bhalgat et al. 2020, where the offset does not depend on the step), times `scale_grad`.
    """
    zero = 0.0 if zero_point is None else float(zero_point.numpy().reshape(-1)[0])
    factor = 1.0 if scale_grad is None else float(scale_grad.numpy().reshape(-1)[0])
    learnt = _LearntScale(qmin - zero, qmax - zero, np.float32, lambda s: factor, zero, clamps_first=True)
    return learnt(inp, step_size)


@dataclass(eq=False)
class _LearntScale(Function):
    """Fake quantization with the scale `scale_of(p)` of a learnt number p; `slope(scale)` is its derivative."""

    lo: float
    hi: float
    scale_of: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    zero: float = 0.0
    clamps_first: bool = False  # LSQ clamps before it rounds, so half a step beyond the ends is outside

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        self.scale = np.float32(self.scale_of(p.numpy().reshape(-1)[0]))
        self.shape = p.shape
        try:
            values = x.numpy()
        except DeferredValueError:  # a graph is being recorded, which has no gradients
            t = x * (np.float32(1) / self.scale)
            return F.clip(F.sign(t) * F.floor(F.abs(t) + 0.5), self.lo, self.hi) * self.scale
        self.t = values * (np.float32(1) / self.scale)
        rounded = np.trunc(self.t + np.copysign(np.float32(0.5), self.t))
        self.q = np.clip(rounded, self.lo, self.hi).astype(np.float32)
        self.inside = (self.lo <= self.t) & (self.t <= self.hi) if self.clamps_first else self.q == rounded
        return Tensor(self.q * self.scale)

    def backward(self, output_grads: Tensor) -> tuple[Tensor, Tensor]:
        ct = output_grads.numpy()
        change = np.where(self.inside, self.q - self.t, self.q + np.float32(self.zero))
        grad = np.sum(ct * change, dtype=np.float64) * self.slope(self.scale)
        return Tensor(ct * self.inside), Tensor(np.full(self.shape, grad, np.float32))


def register_method_to_class(cls: type) -> Callable[[Callable], Callable]:
    """Decorator that makes a function a method of `cls`, under its own name."""

    def register(method: Callable) -> Callable:
        setattr(cls, method.__name__, method)
        return method

    return register
