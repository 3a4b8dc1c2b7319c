"""Elementwise functions as a layer."""

from __future__ import annotations

from typing import Any, ClassVar

from megengine import functional as F
from megengine.core.errors import OptionError
from megengine.module.module import Module
from megengine.tensor import Tensor


class Elemwise(Module):
    """One elementwise function of MegEngine's names: ADD, MUL, RELU, FUSE_ADD_RELU, ..."""

    _FUNCTIONS: ClassVar[dict[str, Any]] = {
        "ADD": F.add,
        "SUB": F.sub,
        "MUL": F.mul,
        "TRUE_DIV": F.div,
        "RELU": F.relu,
        "SIGMOID": F.sigmoid,
        "TANH": F.tanh,
        "SILU": F.silu,
        "EXP": F.exp,
        "LOG": F.log,
        "FUSE_ADD_RELU": lambda x, y: F.relu(x + y),
        "FUSE_ADD_SIGMOID": lambda x, y: F.sigmoid(x + y),
        "FUSE_ADD_TANH": lambda x, y: F.tanh(x + y),
        "FUSE_MUL_ADD3": lambda x, y, z: x * y + z,
    }

    def __init__(self, method: str, **kwargs: Any) -> None:
        super().__init__()
        name = getattr(method, "name", method).upper()
        if name not in self._FUNCTIONS:
            raise OptionError(f"Elemwise: unknown method {method!r}; expected one of {sorted(self._FUNCTIONS)}")
        self.method = name

    def forward(self, *inps: Tensor) -> Tensor:
        """Operands broadcast."""
        return self._FUNCTIONS[self.method](*inps)
