"""Rounded values with gradients that pass straight through the rounding, and those of the scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.autodiff import Function
from megengine.autodiff.tape import Context
from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.dispatch import apply
from megengine.kernels.reference import integer
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

    def factor(self, t: np.ndarray, hi: int, samples: int, scales: int) -> float:
        """What the gradient of each of the scales is multiplied by: 1 / sqrt(numbers it has * largest integer)."""
        return float(1 / np.sqrt(max(t.size / samples / scales * max(hi, 1), 1))) if self.weighted else 1.0


@dataclass(frozen=True, slots=True)
class Sum:
    """The result of an integer layer before and after rounding.

    Args:
        alone: the layer's own, float32, in steps of the result.
        steps: the same with the residual.
        stored: the integers.
        lo, hi: the bounds, relative to the zero point.
    """

    alone: np.ndarray
    steps: np.ndarray
    stored: Tensor
    lo: int
    hi: int


def rounded_sum(t: np.ndarray, residual: Tensor | None, ratio: float, lo: int, hi: int, dtype: QuantizedDType) -> Sum:
    """The end of a layer's arithmetic: the residual is added to t (float32, in steps of dtype), and the sum rounded."""
    alone = t
    if residual is not None:
        other = known_quantized(residual.dtype)
        t = t + (residual.numpy().astype(np.float32) - np.float32(other.zero_point)) * np.float32(ratio)
    q = np.rint(np.clip(t, np.float32(lo), np.float32(hi))) + dtype.zero_point
    return Sum(alone, t, Tensor._wrap(q.astype(dtype.storage), dtype), lo, hi)


def rounding_gradient(
    ct: np.ndarray, t: np.ndarray, lo: int, hi: int, ends: tuple[int, int], slope: Slope
) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of a value before rounding, and at each value that of the scale.

    t is in steps. It passes inside of lo and hi; the scale has a part in the ends of the type, `ends`, not in a bound
    that the network sets.
    """
    inside = (lo <= t) & (t <= hi)
    passed = ct * inside
    if not slope.learns:
        return passed, np.zeros(1, np.float32)
    above, below = (np.float32(end if end == bound else 0) for end, bound in ((ends[1], hi), (ends[0], lo)))
    moved = np.where(t > hi, above, below)
    moved = np.where(inside, np.rint(t) - t if slope.rounding else np.float32(0), moved)
    return passed, ct * moved


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
        t = self.x.numpy() / np.float32(dtype.only_scale)
        lo, hi = ends_of(dtype)
        passed, moved = rounding_gradient(output_grads.numpy(), t, lo, hi, (lo, hi), self.slope)
        return Tensor(passed), _total(moved, self.slope, t, hi, self.scale)


@dataclass(eq=False)
class RoundedWeight(Function):
    """A weight on the grid of its integers; clipped values get no gradient."""

    stored: Tensor
    slope: Slope

    def forward(self, w: Tensor, scale: Tensor) -> Tensor:
        self.w, self.scale = w, scale
        return apply("dequantize", self.stored)

    def backward(self, output_grads: Tensor) -> tuple[Tensor, Tensor | None]:
        dtype = known_quantized(self.stored.dtype)
        w = self.w.numpy()
        t = w / integer.along(dtype.scale, dtype.axis, w.ndim)
        lo, hi = ends_of(dtype)
        ct = output_grads.numpy()
        if not self.slope.learns:  # the largest weight may lie a rounding beyond the end
            return Tensor(ct * (np.abs(t) <= hi + 0.5)), None
        passed, moved = rounding_gradient(ct, t, lo, hi, (lo, hi), self.slope)
        if dtype.axis is None:
            return Tensor(passed), _total(moved, self.slope, t[None], hi, self.scale)
        sums = moved.sum(axis=tuple(i for i in range(w.ndim) if i != dtype.axis % w.ndim), dtype=np.float64)
        factor = self.slope.factor(t, hi, 1, len(sums))
        return Tensor(passed), Tensor((sums * factor).astype(np.float32))


@dataclass(eq=False)
class IntegerLayer(Function):
    """A layer whose value integers stand for: weight, bias, residual, activation and rounding in one.

    The gradient is that of the float layer on the real values of its operands.
    """

    expr: Apply
    sum: Sum
    slope: Slope

    def forward(self, x: Tensor, w: Tensor, scale: Tensor, *others: Tensor) -> Tensor:
        """`others` are what is added: the bias and the residual, where the layer has them."""
        self.operands, self.scale, self.others = (x, w), scale, others
        return apply("dequantize", self.sum.stored)

    def backward(self, output_grads: Tensor) -> tuple[Tensor | None, ...]:
        s, dtype = self.sum, known_quantized(self.sum.stored.dtype)
        passed, moved = rounding_gradient(output_grads.numpy(), s.steps, s.lo, s.hi, ends_of(dtype), self.slope)
        ct = Tensor(passed)
        context = Context(self.operands, (), dict(self.expr.attrs), (True, True))
        vjp: Any = self.expr.record.vjp
        grads = vjp(context, ct)
        others = tuple(_summed(ct, one.shape, rows=self.expr.record.rows) for one in self.others)
        return (*grads, _total(moved, self.slope, s.steps, s.hi, self.scale), *others)


def _summed(ct: Tensor, shape: tuple[int, ...], *, rows: bool) -> Tensor:
    """The gradient of an operand that was added: a residual, or the bias of channels."""
    if ct.shape == shape:
        return ct
    axes = tuple(range(ct.ndim - 1)) if rows else (0, *range(2, ct.ndim))
    return apply("reshape", apply("sum", ct, axis=axes, keepdims=False), shape=shape)


def _total(moved: np.ndarray, slope: Slope, t: np.ndarray, hi: int, scale: Tensor) -> Tensor | None:
    if not slope.learns:
        return None
    total = float(moved.sum(dtype=np.float64)) * slope.factor(t, hi, max(len(t), 1), 1)
    return Tensor(np.full(scale.shape, total, np.float32))
