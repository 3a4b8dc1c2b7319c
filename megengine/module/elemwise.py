"""Elementwise functions as layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megengine import functional as F
from megengine.core.errors import OptionError, nearest
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
    *("abs", "acos", "acosh", "add", "asin", "asinh", "atan2", "atanh", "ceil", "cos", "cosh", "erf", "exp", "expm1"),
    *("floor", "floor_div", "gelu", "hsigmoid", "isinf", "isnan", "log", "log1p", "logsigmoid", "mod", "mul", "pow"),
    *("relu", "relu6", "round", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "sqrt", "square"),
    *("sub", "tan", "tanh"),
)
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name.upper(): getattr(F, name) for name in _SAME},
    **{name: getattr(F, function) for name, function in _RENAMED.items()},
    # comparisons give ones and zeros of the operands' dtype
    "EQ": lambda x, y: F.equal(x, y).astype(x.dtype),
    "NEQ": lambda x, y: F.not_equal(x, y).astype(x.dtype),
    "LT": lambda x, y: F.less(x, y).astype(x.dtype),
    "LEQ": lambda x, y: F.less_equal(x, y).astype(x.dtype),
    "PRELU": lambda x, y: F.maximum(x, 0) + F.minimum(x, 0) * y,  # a slope for every element
    "CLIP": lambda x, lower, upper: F.clip(x, lower, upper),
    "ERFC": lambda x: 1 - F.erf(x),
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
        if self.method.upper() not in _FUNCTIONS:
            raise OptionError(
                f"Elemwise: unknown method {method!r}{nearest(self.method.upper(), _FUNCTIONS)}; "
                f"expected one of {sorted(_FUNCTIONS)}"
            )

    def forward(self, *inps: Tensor) -> Tensor:
        """Operands broadcast."""
        return _FUNCTIONS[self.method.upper()](*inps)
