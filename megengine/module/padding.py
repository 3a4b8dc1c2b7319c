"""Padding as a layer."""

from __future__ import annotations

from megengine import functional as F
from megengine.module.module import Module
from megengine.ops.common import choice
from megengine.ops.slicing import PAD_MODES
from megengine.tensor import Tensor


class Pad(Module):
    """Lengthens axes by (before, after): with a constant, by reflection, or by repeating the border."""

    def __init__(
        self, pad_width: tuple[tuple[int, int], ...], mode: str = "constant", constant_val: float = 0.0
    ) -> None:
        super().__init__()
        self.mode = choice("Pad", "mode", mode, PAD_MODES, any_case=True)
        self.pad_width, self.pad_val = pad_width, constant_val

    def forward(self, src: Tensor) -> Tensor:
        """Any shape with as many axes as pairs."""
        return F.pad(src, self.pad_width, self.mode, self.pad_val)
