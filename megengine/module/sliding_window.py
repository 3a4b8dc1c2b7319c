"""Windows of pictures, and pictures from windows."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor

_Pair = int | tuple[int, int]


class SlidingWindow(Module):
    """Every window of a picture, one beside the other."""

    def __init__(
        self, kernel_size: _Pair, padding: _Pair = 0, stride: _Pair = 1, dilation: _Pair = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_size, self.padding, self.stride, self.dilation = kernel_size, padding, stride, dilation

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow,kh,kw]."""
        return F.sliding_window(inp, self.kernel_size, self.padding, self.stride, self.dilation)


class SlidingWindowTranspose(Module):
    """The sum of windows where they overlap: the adjoint of `SlidingWindow`."""

    def __init__(
        self,
        output_size: _Pair,
        kernel_size: _Pair,
        padding: _Pair = 0,
        stride: _Pair = 1,
        dilation: _Pair = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.output_size = output_size
        self.kernel_size, self.padding, self.stride, self.dilation = kernel_size, padding, stride, dilation

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,oh,ow,kh,kw] -> [N,C,H,W]."""
        geometry = (self.kernel_size, self.padding, self.stride, self.dilation)
        return F.sliding_window_transpose(inp, self.output_size, *geometry)
