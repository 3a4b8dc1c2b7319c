"""Pooling."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class _Pool(Module):
    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, **kwargs: Any) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding


class MaxPool2d(_Pool):
    """Largest element of each window."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.max_pool2d(inp, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool):
    """Mean of each window."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        mode: str = "average_count_exclude_padding",
        **kwargs: Any,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.mode = mode

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.avg_pool2d(inp, self.kernel_size, self.stride, self.padding, self.mode)
