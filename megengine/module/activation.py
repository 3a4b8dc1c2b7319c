"""Activations as layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


def _activation(name: str, function: Any) -> type[Module]:
    def forward(self: Module, x: Tensor) -> Tensor:
        return function(x)

    doc = f"`{function.__name__}` as a layer; any shape."
    return type(name, (Module,), {"forward": forward, "__doc__": doc, "__module__": __name__})


ReLU = _activation("ReLU", F.relu)
ReLU6 = _activation("ReLU6", F.relu6)
Sigmoid = _activation("Sigmoid", F.sigmoid)
SiLU = _activation("SiLU", F.silu)
GELU = _activation("GELU", F.gelu)
HSwish = _activation("HSwish", F.hswish)
HSigmoid = _activation("HSigmoid", F.hsigmoid)
Tanh = _activation("Tanh", F.tanh)


class LeakyReLU(Module):
    """x where positive, else x times negative_slope."""

    def __init__(self, negative_slope: float = 0.01, **kwargs: Any) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape."""
        return F.leaky_relu(inputs, self.negative_slope)


class PReLU(Module):
    """x where positive, else x times a learnt slope: one, or one per channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, **kwargs: Any) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        shape = (1,) if num_parameters == 1 else (1, num_parameters, 1, 1)
        self.weight = Parameter(np.full(shape, init, np.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        """[N,C,...], same out."""
        return F.prelu(inputs, self.weight)


class Softmax(Module):
    """Softmax along an axis."""

    def __init__(self, axis: int | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape."""
        return F.softmax(inputs, self.axis)
