"""Rounded values with gradients that pass straight through the rounding, and those of the scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.autodiff import Function
from megengine.autodiff.tape import Context
from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.dispatch import apply
from megengine.kernels.cuda.placing import host
from megengine.kernels.native import from_step, to_step
from megengine.kernels.reference import integer
from megengine.kernels.rounding import round_sums, round_sums_backward
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply


@dataclass(frozen=True, slots=True)
class Slope:
    """How the gradient of a scale is found.

    Args:
        learns: whether it is wanted.
        rounding: what rounding moves counts too, not only what is clipped.
        weighted: multiplied by what `factor` says, as for learned step sizes.
    """

    learns: bool = False
    rounding: bool = True
    weighted: bool = False

    @classmethod
    def of(cls, method: str) -> Slope:
        """That of a method of training scales."""
        return cls(method != "ste", method != "pact", method == "lsq")

    def factor(self, features: int, hi: int) -> float:
        """What the gradient of a scale is multiplied by: 1 / sqrt(numbers of a sample * largest integer)."""
        return max(features * max(hi, 1), 1) ** -0.5 if self.weighted else 1.0


@dataclass(frozen=True, slots=True)
class Sum:
    """The result of an integer layer before and after rounding.

    Args:
        alone: the layer's own, float32, in steps of the result, channels last: [rows, channels].
        steps: the same with the residual.
        ends: smallest and largest of them.
        stored: the integers.
        lo, hi: the bounds, relative to the zero point.
    """

    alone: np.ndarray
    steps: np.ndarray
    ends: tuple[float, float]
    stored: Tensor
    lo: int
    hi: int


def by_channel(array: np.ndarray) -> np.ndarray:
    """An array as [rows, channels]: of four axes the second one counts channels, else the last one."""
    return _flat(to_step(array))


def _as_before(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What `by_channel` was made of."""
    return from_step(rows.reshape(shape[0], *shape[2:], shape[1])) if len(shape) == 4 else rows.reshape(shape)


def rounded_sum(t: np.ndarray, residual: Tensor | None, ratio: float, lo: int, hi: int, dtype: QuantizedDType) -> Sum:
    """The end of a layer's arithmetic: the residual is added to t (float32, in steps of dtype), and the sum rounded."""
    alone = by_channel(t)
    other = None if residual is None else by_channel(host(residual._storage()))
    zero = 0 if residual is None else known_quantized(residual.dtype).zero_point
    steps, q, ends = round_sums(alone, other, zero, ratio, (lo, hi), dtype.zero_point, dtype.storage)
    return Sum(alone, steps, ends, Tensor._wrap(_as_before(q, t.shape), dtype), lo, hi)


def rounding_gradient(
    ct: np.ndarray, t: np.ndarray, lo: int, hi: int, ends: tuple[int, int], slope: Slope
) -> tuple[np.ndarray, np.ndarray, float]:
    """The gradient before rounding, its sum by channel, and the gradient of the scale, of [rows, channels].

    t is in steps. It passes inside of lo and hi; the scale has a part in the ends of the type, `ends`, not in a bound
    that the network sets.
    """
    factors = float(ends[0]) * (ends[0] == lo), float(ends[1]) * (ends[1] == hi)
    return round_sums_backward(ct, t, (lo, hi), factors, rounding=slope.learns and slope.rounding)


def ends_of(dtype: QuantizedDType) -> tuple[int, int]:
    """Smallest and largest integer of a dtype, relative to its zero point."""
    return dtype.qmin - dtype.zero_point, dtype.qmax - dtype.zero_point


@dataclass(eq=False)
class RoundedValue(Function):
    """The value of an edge, which integers stand for: its gradient is that of the float value x where not clipped."""

    stored: Tensor
    slope: Slope

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        self.x, self.scale = x, scale
        return apply("dequantize", self.stored)

    def backward(self, output_grads: Tensor) -> tuple[Tensor, Tensor | None]:
        dtype = known_quantized(self.stored.dtype)
        x = self.x.numpy()
        t, ends = x / np.float32(dtype.only_scale), ends_of(dtype)
        shape = x.shape if x.ndim else (1,)
        ct = by_channel(output_grads.numpy().reshape(shape))
        passed, _, total = rounding_gradient(ct, by_channel(t.reshape(shape)), *ends, ends, self.slope)
        whole = _as_before(passed, shape).reshape(x.shape)
        return Tensor._wrap(whole), _of_scale(total, self.slope, t.size // max(shape[0], 1), ends[1], self.scale)


@dataclass(eq=False)
class RoundedWeight(Function):
    """A weight on the grid of its integers; clipped values get no gradient.

    In groups the integers have another shape than the weight, and `real` are the values they stand for.
    """

    stored: Tensor
    slope: Slope
    real: np.ndarray | None = None

    def forward(self, w: Tensor, scale: Tensor) -> Tensor:
        self.w, self.scale = w, scale
        return apply("dequantize", self.stored) if self.real is None else Tensor(self.real)

    def backward(self, output_grads: Tensor) -> tuple[Tensor, Tensor | None]:
        dtype = known_quantized(self.stored.dtype)
        w = self.w.numpy()
        if self.real is not None:
            return output_grads, None
        t = w / integer.along(dtype.scale, dtype.axis, w.ndim)
        lo, hi = ends_of(dtype)
        ct = output_grads.numpy()
        if not self.slope.learns:  # the largest weight may lie a rounding beyond the end
            return (
                output_grads if np.abs(t).max(initial=0) <= hi + 0.5 else Tensor(ct * (np.abs(t) <= hi + 0.5))
            ), None
        inside = (lo <= t) & (t <= hi)
        moved = ct * np.where(inside, np.rint(t) - t, np.clip(t, lo, hi))
        axes = tuple(i for i in range(w.ndim) if dtype.axis is None or i != dtype.axis % w.ndim)
        sums = moved.sum(axis=axes, dtype=np.float64)
        factor = self.slope.factor(w.size // max(sums.size, 1), hi)
        return Tensor(ct * inside), Tensor((sums * factor).astype(np.float32).reshape(self.scale.shape))


@dataclass(eq=False)
class IntegerLayer(Function):
    """A layer whose value integers stand for: weight, bias, residual, activation and rounding in one.

    The gradient is that of the float layer on the real values of its operands; `attrs` are the layer's at the sizes of
    its input.
    """

    expr: Apply
    attrs: dict[str, Any]
    sum: Sum
    slope: Slope

    def forward(self, x: Tensor, w: Tensor, scale: Tensor, *others: Tensor) -> Tensor:
        """`others` are what is added: the bias and the residual, where the layer has them."""
        self.operands, self.scale, self.others = (x, w), scale, others
        return apply("dequantize", self.sum.stored)

    def backward(self, output_grads: Tensor) -> tuple[Tensor | None, ...]:
        s, shape, record = self.sum, output_grads.shape, self.expr.record
        ends = ends_of(known_quantized(s.stored.dtype))
        rows = _flat(output_grads.numpy()) if record.rows else by_channel(output_grads.numpy())
        passed, sums, total = rounding_gradient(rows, s.steps, s.lo, s.hi, ends, self.slope)
        ct = Tensor._wrap(passed.reshape(shape) if record.rows else _as_before(passed, shape))
        vjp: Any = record.vjp
        grads = vjp(Context(self.operands, (), self.attrs, self.needs[:2]), ct)
        others = tuple(ct if one.shape == shape else Tensor._wrap(sums.reshape(one.shape)) for one in self.others)
        return (*grads, _of_scale(total, self.slope, s.steps.size // max(shape[0], 1), s.hi, self.scale), *others)


def _flat(array: np.ndarray) -> np.ndarray:
    """[rows, the last axis]."""
    return np.ascontiguousarray(array).reshape(-1, array.shape[-1])


def _of_scale(total: float, slope: Slope, features: int, hi: int, scale: Tensor) -> Tensor | None:
    """The gradient of one scale."""
    return Tensor(np.full(scale.shape, total * slope.factor(features, hi), np.float32)) if slope.learns else None
