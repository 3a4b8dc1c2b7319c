"""Draws docs/pictures/quantized.svg: a small network as it was traced, and the integer network made of it.

python docs/pictures/quantized.py [FILE]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.quantization import quantize_model
from megengine.traced_module import trace_module
from megengine.traced_module.pictures.drawing import to_svg

GAP = 40


class Block(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = M.ConvBn2d(8, 8, 3, padding=1)
        self.conv2 = M.ConvBn2d(8, 8, 3, padding=1)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + x)


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = M.Conv2d(3, 8, 3, stride=2, padding=1)
        self.block = Block()
        self.fc = M.Linear(8, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = self.block(F.relu(self.stem(x)))
        return self.fc(F.flatten(F.avg_pool2d(x, 16), 1))


def side_by_side(pictures: list[str]) -> str:
    """One SVG with others beside each other."""
    left, heights, parts = 0, [], []
    for picture in pictures:
        width, height = map(int, re.findall(r'(?:width|height)="(\d+)"', picture)[:2])
        parts.append(picture.replace("<svg ", f'<svg x="{left}" ', 1))
        heights.append(height)
        left += width + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left - GAP}" height="{max(heights)}">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>\n"])


def main() -> None:
    mge.random.seed(0)
    inputs = np.random.default_rng(0).standard_normal((16, 1, 3, 32, 32)).astype(np.float32)
    traced = trace_module(Net().eval(), mge.tensor(inputs[0]))
    quantized = quantize_model(traced, inputs)
    picture = side_by_side([to_svg(traced.graph), to_svg(quantized.integer_graph)])
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg")
    path.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
