"""A small network of two residual blocks, which tests of edits, logs and differences change."""

from typing import Any

import megengine.functional as F
import megengine.module as M


class Block(M.Module):
    """A residual block of one convolution."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv, self.norm = M.Conv2d(n, n, 3, padding=1), M.BatchNorm2d(n)

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm(self.conv(x))) + x


class BlockNet(M.Module):
    """A stem, two blocks and a classifier; takes float32 [N, 3, 6, 6] and gives [N, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = M.Conv2d(3, 4, 1)
        self.blocks = [Block(4), Block(4)]
        self.fc = M.Linear(4, 5)

    def forward(self, x: Any, scale: float = 2.0) -> Any:
        x = self.stem(x) * scale
        for block in self.blocks:
            x = block(x)
        return self.end(F.avg_pool2d(x, 6))

    def end(self, x: Any) -> Any:
        """From [N, 4, 1, 1] on: what the networks of the tests do differently."""
        return self.fc(x.reshape(x.shape[0], -1))
