"""Quantization parameters, and fake quantization as functions, by MegEngine's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.autodiff import Function
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import ArgumentError, OptionError
from megengine.core.tensor.dtype import QuantDtypeMeta, create_quantized_dtype, meta_of
from megengine.dispatch import apply
from megengine.quantization.ranges.places import at
from megengine.tensor import Tensor

_HOME = "megengine.quantization.utils"


@at(_HOME)
class QuantMode(Enum):
    """Whether zero is in the middle of the range. The names are spelt as MegEngine spells them."""

    SYMMERTIC = 1
    ASYMMERTIC = 2


@at(_HOME)
class QParams:
    """Scale and zero point of a tensor, with the integer type they are for.

    Args:
        mode: symmetric or not.
        dtype_meta: the integer type.
        scale: 0-d float32 tensor, or one entry per output channel; None while unknown.
        zero_point: 0-d float32 tensor, None in symmetric mode.

    Example:
        >>> create_qparams(dtype_meta="qint8", scale=Tensor(0.5)).dtype.scale
        0.5
    """

    __slots__ = ("dtype_meta", "mode", "scale", "zero_point")

    def __init__(
        self,
        mode: QuantMode,
        dtype_meta: QuantDtypeMeta | None,
        scale: Tensor | None,
        zero_point: Tensor | None,
    ) -> None:
        self.mode, self.dtype_meta = mode, dtype_meta
        self.scale, self.zero_point = scale, zero_point

    def update(self, qparams: QParams) -> None:
        """Take over the values of others."""
        for name in self._names():
            setattr(self, name, getattr(qparams, name))

    @property
    def dtype(self) -> QuantizedDType:
        """The frozen quantized dtype. Raises OptionError while the scale is not known."""
        if self.scale is None or self.dtype_meta is None:
            raise OptionError("qparams: they have no scale yet; observe data, or set them with set_qparams")
        zero = None if self.zero_point is None else int(np.asarray(self.zero_point.numpy()).reshape(-1)[0])
        return create_quantized_dtype(self.dtype_meta, self.scale.numpy(), zero)

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(name for c in reversed(cls.__mro__) for name in getattr(c, "__slots__", ()))

    def __setstate__(self, state: Any) -> None:
        _, values = state
        for name in self._names():
            setattr(self, name, values.get(name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QParams):
            return NotImplemented
        return all(_same(getattr(self, n), getattr(other, n, None)) for n in self._names())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)}' for n in self._names())})"


@at(_HOME)
class LSQParams(QParams):
    """QParams with the factor by which LSQ weighs the gradient of the scale."""

    __slots__ = ("grad_scale",)

    def __init__(
        self,
        mode: QuantMode,
        dtype_meta: QuantDtypeMeta | None,
        scale: Tensor | None,
        zero_point: Tensor | None,
        grad_scale: Tensor | None,
    ) -> None:
        super().__init__(mode, dtype_meta, scale, zero_point)
        self.grad_scale = grad_scale


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return bool(np.array_equal(a.numpy(), b.numpy()))
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


@at(_HOME)
class QParamsModuleMixin(ABC):
    """A module that knows quantization parameters."""

    @abstractmethod
    def get_qparams(self) -> QParams:
        """Scale and zero point."""

    def get_quantized_dtype(self) -> QuantizedDType:
        """The dtype of tensors quantized with them."""
        return self.get_qparams().dtype


def create_qparams(
    mode: QuantMode = QuantMode.SYMMERTIC,
    dtype_meta: str | QuantDtypeMeta | None = None,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
) -> QParams:
    """QParams of a type given by name; numbers become tensors.

    Raises:
        OptionError: mode and type do not fit (types with a zero point are asymmetric, the others symmetric).
        ArgumentError: mode is no QuantMode.
    """
    if not isinstance(mode, QuantMode):
        raise ArgumentError(f"create_qparams: mode is {mode!r}; expected one of {[str(m) for m in QuantMode]}")
    meta = None if dtype_meta is None else meta_of(dtype_meta)
    scale, zero_point = (v if v is None or isinstance(v, Tensor) else Tensor(v) for v in (scale, zero_point))
    if meta is not None and scale is not None:
        _check_zero(meta, mode, zero_point)
    return QParams(mode, meta, scale, zero_point)


def _check_zero(meta: QuantDtypeMeta, mode: QuantMode, zero_point: Tensor | None) -> None:
    if meta.zero_points and zero_point is None:
        raise OptionError(
            f"create_qparams: {meta.name} needs a zero point, and mode is {mode.name}; "
            "use QuantMode.ASYMMERTIC, or a signed type"
        )
    if not meta.zero_points and not meta.is_own and zero_point is not None and np.any(zero_point.numpy()):
        raise OptionError(
            f"create_qparams: {meta.name} is symmetric, but zero_point is {zero_point.numpy()}; "
            "use QuantMode.SYMMERTIC, or quint8"
        )


def fake_quant_tensor(inp: Tensor, qparams: QParams) -> Tensor:
    """Real values that `inp` (float32, any shape) has after quantization; the result carries `qparams`.

    It rounds exactly as `inp.astype(dtype)` and the quantized modules do (MegEngine divides here and multiplies by
    the reciprocal there, which differs in rare values next to a tie). Gradients pass where nothing is clamped.
    """
    out = apply("fake_quant_away", inp, dtype=qparams.dtype)
    out.qparams = qparams
    return out


def fake_quant_bias(bias: Tensor, inp: Tensor, w_qat: Tensor) -> Tensor:
    """Bias rounded to 32-bit integers of scale `s_inp * s_w`; unchanged where one of the scales is not known."""
    scales = [_scale(t) for t in (inp, w_qat)]
    if bias is None or any(s is None for s in scales):
        return bias
    product = np.float32(scales[0]) * np.asarray(scales[1], np.float32)
    dtype = create_quantized_dtype(meta_of("qint32"), product, None)
    out = apply("fake_quant_away", bias.reshape(-1), dtype=dtype).reshape(bias.shape)
    out.qparams = create_qparams(QuantMode.SYMMERTIC, "qint32", Tensor(product))
    return out


def _scale(tensor: Tensor) -> np.ndarray | None:
    qparams = tensor.qparams
    if isinstance(qparams, QParams) and qparams.scale is not None:
        return np.asarray(qparams.scale.numpy()).reshape(qparams.scale.shape if qparams.scale.size > 1 else ())
    return None


@at(_HOME)
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
    return _LearntStep(qmin - zero, qmax - zero, np.float32, lambda s: factor, zero)(inp, step_size)


@dataclass(eq=False)
class _LearntScale(Function):
    """Fake quantization with the scale `scale_of(p)` of a learnt number p; `slope(scale)` is its derivative."""

    lo: float
    hi: float
    scale_of: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    zero: float = 0.0

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        """Values on the grid, ties away from zero."""
        self.scale = np.float32(self.scale_of(p.numpy().reshape(-1)[0]))
        self.shape = p.shape
        self.t = x.numpy() * (np.float32(1) / self.scale)
        rounded = np.trunc(self.t + np.copysign(np.float32(0.5), self.t))
        self.q = np.clip(rounded, self.lo, self.hi).astype(np.float32)
        self.inside = self._inside(rounded)
        return Tensor(self.q * self.scale)

    def _inside(self, rounded: np.ndarray) -> np.ndarray:
        return self.q == rounded

    def backward(self, output_grads: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of x and of p."""
        ct = output_grads.numpy()
        change = np.where(self.inside, self.q - self.t, self.q + np.float32(self.zero))
        grad = np.sum(ct * change, dtype=np.float64) * self.slope(self.scale)
        return Tensor(ct * self.inside), Tensor(np.full(self.shape, grad, np.float32))


class _LearntStep(_LearntScale):
    """LSQ clamps before it rounds, so half a step beyond the ends is outside."""

    def _inside(self, rounded: np.ndarray) -> np.ndarray:
        return (self.lo <= self.t) & (self.t <= self.hi)


def register_method_to_class(cls: type) -> Callable[[Callable], Callable]:
    """Decorator that makes a function a method of `cls`, under its own name."""

    def register(method: Callable) -> Callable:
        setattr(cls, method.__name__, method)
        return method

    return register
