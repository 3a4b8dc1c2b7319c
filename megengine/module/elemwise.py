"""Elementwise functions as layers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.errors import ArgumentError, DTypeError, OptionError, nearest
from megengine.core.text import counted
from megengine.module.module import Module
from megengine.tensor import Tensor

# name of MegEngine -> public function, where they differ by more than case
_RENAMED = {
    "MAX": "maximum",
    "MIN": "minimum",
    "TRUE_DIV": "div",
    "NEGATE": "neg",
    "AND": "logical_and",
    "OR": "logical_or",
    "XOR": "logical_xor",
    "NOT": "logical_not",
    "H_SWISH": "hswish",
    "LOG_SUM_EXP": "logaddexp",
    "SHL": "left_shift",
    "SHR": "right_shift",
}
_SAME = (
    "ABS ACOS ACOSH ADD ASIN ASINH ATAN2 ATANH CEIL COS COSH ERF EXP EXPM1 FLOOR FLOOR_DIV GELU HSIGMOID ISINF "
    "ISNAN LOG LOG1P LOGSIGMOID MOD MUL POW RELU RELU6 ROUND SIGMOID SIGN SILU SIN SINH SOFTPLUS SQRT SQUARE SUB "
    "TAN TANH"
)


def _erfinv(y: Tensor) -> Tensor:
    """Inverse of erf: M. Giles, "Approximating the erfinv function", 2010, and two steps of Newton's method."""
    w = -F.log((1 - y) * (1 + y))
    middle, tail = w - 2.5, F.sqrt(F.maximum(w, 5.0)) - 3.0
    x = y * F.where(w < 5.0, _polynomial(_GILES_MIDDLE, middle), _polynomial(_GILES_TAIL, tail))
    for _ in range(2):
        step = (F.erf(x) - y) * (math.sqrt(math.pi) / 2) * F.exp(x * x)
        x = F.where(abs(step) < 0.1, x - step, x)  # larger steps are near the ends, where the slope vanishes
    ends = y.detach() * F.where(abs(y) > 1, math.nan, math.inf)  # without a gradient: zero times these is not zero
    return F.where(abs(y) < 1, x, ends)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = F.zeros_like(x)
    for c in coefficients:
        total = total * x + c
    return total


_GILES_MIDDLE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_GILES_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def _high_product(x: Tensor, y: Tensor) -> Tensor:
    """The upper half of twice the product of integers, rounded; a result that does not fit is the largest number."""
    if x.dtype not in (np.int8, np.int16, np.int32):
        raise DTypeError(f"RMULH: got {x.dtype}; expected int8, int16 or int32")
    bits = np.iinfo(x.dtype).bits - 1
    product = F.right_shift(x.astype("int64") * y.astype("int64") + 2 ** (bits - 1), bits)
    return F.minimum(product, 2**bits - 1).astype(x.dtype)


def _fast_tanh_slope(x: Tensor) -> Tensor:
    square = x * x
    below = 27 + 9 * square
    return ((27 + 3 * square) * below - 18 * square * (27 + square)) / (below * below)


def _silu_slope(x: Tensor) -> Tensor:
    y = F.sigmoid(x)
    return y * (1 + x * (1 - y))


# name of MegEngine -> gradient from an argument (of SIGMOID and TANH: the result) and the gradient of the result
_GRADIENTS: dict[str, Callable[..., Tensor]] = {
    "ABS_GRAD": lambda x, dy: F.where(x > 0, dy, -dy),
    "ACOSH_GRAD": lambda x, dy: dy / F.sqrt(x * x - 1),
    "ASINH_GRAD": lambda x, dy: dy / F.sqrt(x * x + 1),
    "ATANH_GRAD": lambda x, dy: dy / (1 - x * x),
    "FAST_TANH_GRAD": lambda x, dy: _fast_tanh_slope(x) * dy,
    "GELU_GRAD": lambda x, dy: (
        (0.5 * (1 + F.erf(x * math.sqrt(0.5))) + x * F.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))) * dy
    ),
    "HSIGMOID_GRAD": lambda x, dy: F.where(abs(x) < 3, dy / 6, F.zeros_like(dy)),
    "H_SWISH_GRAD": lambda x, dy: F.where(abs(x) <= 3, (2 * x + 3) / 6, (x > 0).astype(x.dtype)) * dy,
    "PRELU_GRAD": lambda x, dy, slope: F.where(x < 0, dy * slope, dy),
    "RELU6_GRAD": lambda x, dy: F.where(F.logical_and(x > 0, x < 6), dy, F.zeros_like(dy)),
    "SIGMOID_GRAD": lambda y, dy: y * (1 - y) * dy,
    "SILU_GRAD": lambda x, dy: _silu_slope(x) * dy,
    "SOFTPLUS_GRAD": lambda x, dy: F.sigmoid(x) * dy,
    "TANH_GRAD": lambda y, dy: (1 - y * y) * dy,
}
# name of MegEngine -> what computes it
MODES: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(F, name.lower()) for name in _SAME.split()},
    **{name: getattr(F, function) for name, function in _RENAMED.items()},
    # comparisons give ones and zeros of the operands' dtype
    "EQ": lambda x, y: F.equal(x, y).astype(x.dtype),
    "NEQ": lambda x, y: F.not_equal(x, y).astype(x.dtype),
    "LT": lambda x, y: F.less(x, y).astype(x.dtype),
    "LEQ": lambda x, y: F.less_equal(x, y).astype(x.dtype),
    "PRELU": lambda x, y: F.maximum(x, 0) + F.minimum(x, 0) * y,  # a slope for every element
    "CLIP": lambda x, lower, upper: F.clip(x, lower, upper),
    "ERFC": lambda x: 1 - F.erf(x),
    "ERFINV": _erfinv,
    "ERFCINV": lambda x: _erfinv(1 - x),
    "RMULH": _high_product,
    **_GRADIENTS,
    "FAST_TANH": lambda x: x * (27 + x * x) / (27 + 9 * x * x),
    "FUSE_ADD_RELU": lambda x, y: F.relu(x + y),
    "FUSE_ADD_SIGMOID": lambda x, y: F.sigmoid(x + y),
    "FUSE_ADD_TANH": lambda x, y: F.tanh(x + y),
    "FUSE_ADD_H_SWISH": lambda x, y: F.hswish(x + y),
    "FUSE_MUL_ADD3": lambda x, y, z: x * y + z,
    "FUSE_MUL_ADD4": lambda x, y, z, w: x * y + z * w,
    "SWITCH_GT0": lambda x, y: F.where(x > 0, y, F.zeros_like(y)),
    "COND_LEQ_MOV": lambda x, y, z: F.where(x <= y, z, F.zeros_like(z)),
    "COND_LT_MOV": lambda x, y, z: F.where(x < y, z, F.zeros_like(z)),
}


class Elemwise(Module):
    """One elementwise function by MegEngine's name, so that its result can be quantized.

    Names in any case: ADD, MUL, RELU, FUSE_ADD_RELU, FUSE_MUL_ADD3, ... Raises OptionError for an unknown one.
    """

    def __init__(self, method: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.method = getattr(method, "name", method)
        if self.method.upper() not in MODES:
            raise OptionError(
                f"Elemwise: unknown method {method!r}{nearest(self.method.upper(), MODES)}; "
                f"expected one of {sorted(MODES)}"
            )

    def forward(self, *inps: Tensor) -> Tensor:
        """Operands broadcast."""
        function = MODES[self.method.upper()]
        try:
            return function(*inps)
        except TypeError as exc:
            parameters = inspect.signature(function).parameters
            if len(inps) == len(parameters):
                raise
            raise ArgumentError(
                f"Elemwise: {self.method} got {counted(len(inps), 'tensor')}; "
                f"expected {len(parameters)}: {', '.join(parameters)}"
            ) from exc
