"""Ops on real values that lie on a quantized grid, as networks in training have them: results are those on integers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

from megengine.autodiff import Function
from megengine.core.dtype import QuantizedDType
from megengine.dispatch import apply
from megengine.tensor import Tensor

P = ParamSpec("P")


def grid_of(tensor: Any) -> QuantizedDType | None:
    """The dtype whose values a tensor of real numbers holds, by its `qparams`; None if they name none.

    There is no integer arithmetic for types that a user defines, so these give None too.
    """
    if not isinstance(tensor, Tensor) or tensor._qparams is None:
        return None
    qparams: Any = tensor.qparams
    if getattr(qparams, "scale", None) is None or qparams.dtype_meta is None:
        return None
    return None if qparams.dtype_meta.is_own else qparams.dtype


def with_value(x: Tensor, value: Tensor) -> Tensor:
    """`value` (the shape of x) with the gradient of x; qparams are those of x."""
    out = _Replaced(value)(x)
    out.qparams = x.qparams
    return out


@dataclass(eq=False)
class _Replaced(Function):
    value: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.value

    def backward(self, output_grads: Tensor) -> Tensor:
        return output_grads


def simulated(rule: Callable[..., Any]) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Mark a function of one tensor that computes by `rule` on quantized tensors, in the operand's dtype.

    Where the operand holds real values on a grid, the result has the values of that rule, on the same grid, and the
    gradient of the function.
    """

    def mark(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            y = function(*args, **kwargs)
            x = args[0] if args else kwargs.get("inp")
            dtype = grid_of(x)
            if dtype is None or not isinstance(x, Tensor) or isinstance(x.dtype, QuantizedDType):
                return y
            stored = apply("quantize_away", x.detach(), dtype=dtype, factor=None)
            others = {k: v for k, v in kwargs.items() if k != "inp"}
            y.qparams = x.qparams
            return with_value(y, apply("dequantize", rule(function, stored, *args[1:], **others)))

        return call

    return mark
