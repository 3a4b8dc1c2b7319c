"""Pooling by windows."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.ops.common import choice
from megengine.ops.pool import AVERAGES
from megengine.tensor import Tensor


class _PoolNd(Module):
    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_size = kernel_size
        self.stride = stride or kernel_size
        self.padding = padding

    def _module_info_string(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool2d(_PoolNd):
    """Largest element of each window."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.max_pool2d(inp, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_PoolNd):
    """Mean of each window; `mode` says whether padding counts: average or average_count_exclude_padding."""

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
        mode: str = "average_count_exclude_padding",
        **kwargs: Any,
    ) -> None:
        super().__init__(kernel_size, stride, padding, **kwargs)
        self.mode = choice(type(self).__name__, "mode", mode, tuple(AVERAGES), any_case=True)

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.avg_pool2d(inp, self.kernel_size, self.stride, self.padding, self.mode)

    def _module_info_string(self) -> str:
        return f"{super()._module_info_string()}, mode={self.mode}"
