"""Activations as layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


class Softmax(Module):
    """Softmax along an axis; without one, along the channels as `F.softmax` chooses them."""

    def __init__(self, axis: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.softmax(inputs, self.axis)

    def _module_info_string(self) -> str:
        return f"axis={self.axis}"


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.sigmoid(inputs)


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.silu(inputs)


class GELU(Module):
    """x times the normal distribution function of x."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.gelu(inputs)


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.relu(x)


class ReLU6(Module):
    """min(max(x, 0), 6)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.relu6(x)


class HSwish(Module):
    """x * relu6(x + 3) / 6."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.hswish(x)


class HSigmoid(Module):
    """relu6(x + 3) / 6."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.hsigmoid(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.tanh(x)


class PReLU(Module):
    """x where positive, else x times a learnt slope: one, or one per channel of [N,C,H,W]."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_parameters = num_parameters
        shape = (1,) if num_parameters == 1 else (1, num_parameters, 1, 1)
        self.weight = Parameter(np.full(shape, init, np.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        """[N,C,...], same out."""
        return F.prelu(inputs, self.weight)


class LeakyReLU(Module):
    """x where positive, else x times negative_slope."""

    def __init__(self, negative_slope: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.negative_slope = negative_slope

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.leaky_relu(inputs, self.negative_slope)
