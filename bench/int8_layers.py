"""Single 8-bit layers of ResNet-50 and MobileNetV2: own kernels beside oneDNN, thread CPU time, one thread, batch 1.

python bench/int8_layers.py [part of a layer's name]
"""

from __future__ import annotations

import sys
import time

import numpy as np

import megengine.functional  # noqa: F401
from megengine.core.dtype import quint8
from megengine.core.spec import TensorSpec
from megengine.dispatch import infer
from megengine.kernels import _core
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family

# name, input channels, size, output channels, kernel, stride, residual; depthwise where output channels is 0
LAYERS = [
    ("stem7x7s2", 3, 224, 64, 7, 2, False),
    ("l1.1x1_64_64", 64, 56, 64, 1, 1, False),
    ("l1.3x3_64", 64, 56, 64, 3, 1, False),
    ("l1.1x1_64_256", 64, 56, 256, 1, 1, False),
    ("l1.1x1_64_256+sum", 64, 56, 256, 1, 1, True),
    ("l1.1x1_256_64", 256, 56, 64, 1, 1, False),
    ("l2.1x1_256_128", 256, 56, 128, 1, 1, False),
    ("l2.3x3s2_128", 128, 56, 128, 3, 2, False),
    ("l2.1x1_128_512+sum", 128, 28, 512, 1, 1, True),
    ("l2.1x1s2_256_512", 256, 56, 512, 1, 2, False),
    ("l2.1x1_512_128", 512, 28, 128, 1, 1, False),
    ("l2.3x3_128", 128, 28, 128, 3, 1, False),
    ("l3.1x1_256_1024+sum", 256, 14, 1024, 1, 1, True),
    ("l3.1x1_1024_256", 1024, 14, 256, 1, 1, False),
    ("l3.3x3_256", 256, 14, 256, 3, 1, False),
    ("l4.3x3s2_512", 512, 14, 512, 3, 2, False),
    ("l4.1x1_512_2048+sum", 512, 7, 2048, 1, 1, True),
    ("l4.1x1_2048_512", 2048, 7, 512, 1, 1, False),
    ("l4.3x3_512", 512, 7, 512, 3, 1, False),
    ("mb.stem3x3s2", 3, 224, 32, 3, 2, False),
    ("mb.dw_32", 32, 112, 0, 3, 1, False),
    ("mb.dw_96s2", 96, 112, 0, 3, 2, False),
    ("mb.dw_144", 144, 56, 0, 3, 1, False),
    ("mb.dw_144s2", 144, 56, 0, 3, 2, False),
    ("mb.dw_192", 192, 28, 0, 3, 1, False),
    ("mb.dw_384", 384, 14, 0, 3, 1, False),
    ("mb.dw_576s2", 576, 14, 0, 3, 2, False),
    ("mb.dw_960", 960, 7, 0, 3, 1, False),
    ("el.dw5_144s2", 144, 56, 0, 5, 2, False),
    ("el.dw5_240", 240, 28, 0, 5, 1, False),
    ("el.dw5_672", 672, 14, 0, 5, 1, False),
    ("mb.1x1_32_16", 32, 112, 16, 1, 1, False),
    ("mb.1x1_16_96", 16, 112, 96, 1, 1, False),
    ("mb.1x1_96_24", 96, 56, 24, 1, 1, False),
    ("mb.1x1_24_144", 24, 56, 144, 1, 1, False),
    ("mb.1x1_144_24+sum", 144, 56, 24, 1, 1, True),
    ("mb.1x1_32_192", 32, 28, 192, 1, 1, False),
    ("mb.1x1_384_64", 384, 14, 64, 1, 1, False),
    ("mb.1x1_64_384", 64, 14, 384, 1, 1, False),
    ("mb.1x1_576_96", 576, 14, 96, 1, 1, False),
    ("mb.1x1_960_160", 960, 7, 160, 1, 1, False),
    ("mb.1x1_160_960", 160, 7, 960, 1, 1, False),
    ("mb.1x1_320_1280", 320, 7, 1280, 1, 1, False),
    ("fc_2048_1000", 2048, 1, 1000, 1, 1, False),
]


def layer(channels: int, size: int, outputs: int, kernel: int, stride: int, residual: bool) -> tuple:
    """The problem, its constants, and the arrays that move."""
    rng = np.random.default_rng(0)
    groups = 1 if outputs else channels
    o, pad, kind = outputs or channels, kernel // 2, quint8(0.02)
    w = rng.integers(-127, 128, (o, channels // groups, kernel, kernel)).astype(np.int8)
    depth = w[0].size
    constants = {1: w, 2: np.zeros(o, np.int32), 3: np.full(o, 1 / (75 * np.sqrt(depth)), "f4"), 4: np.ones(o, "f4")}
    attrs = {"stride": (stride, stride), "padding": ((pad, pad), (pad, pad)), "dilation": (1, 1), "groups": groups}
    attrs |= {"lo": 0, "hi": 255, "ratio": 0.5 if residual else 0.0, "dtype": kind}
    specs = [TensorSpec((1, channels, size, size), kind), *[TensorSpec(a.shape, a.dtype) for a in constants.values()]]
    out = infer("qconv2d", specs, attrs)
    if residual:
        specs.append(TensorSpec(out.shape, kind))
    shapes = [specs[0].shape] + ([out.shape] if residual else [])
    arrays = [rng.integers(0, 256, (1, s[2], s[3], s[1])).astype(np.uint8) for s in shapes]
    empty = np.empty((1, out.shape[2], out.shape[3], out.shape[1]), np.uint8)
    return Problem("qconv2d", specs, [out], attrs), constants, arrays, empty


def cpu_seconds(step: object, buffers: list, repeat: int) -> float:
    """CPU seconds of one run, averaged over `repeat` runs."""
    begin = time.thread_time()
    for _ in range(repeat):
        _core.run_step(step, buffers)
    return (time.thread_time() - begin) / repeat


def main() -> None:
    """Print a table; the ratio is own / oneDNN."""
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    print(f"{'layer':22} {'own':>16} {'us':>8} {'oneDNN us':>10} {'ratio':>6}")
    for name, *shape in LAYERS:
        if part not in name:
            continue
        problem, constants, arrays, out = layer(*shape)
        steps = {}
        for kernel in family("qconv2d").candidates(problem, step=True):
            inplace = kernel.inplace_input == 5 and len(arrays) == 2
            buffers = [arrays[0], out, out] if inplace else [*arrays, out]
            steps[kernel.name] = (kernel.make_step(problem, constants, 1), buffers)
        best = dict.fromkeys(steps, np.inf)
        for _ in range(7):
            for kernel, (step, buffers) in steps.items():
                best[kernel] = min(best[kernel], cpu_seconds(step, buffers, 20))
        peer = best.pop("onednn_qconv2d", np.nan)
        own = min(best, key=best.get)
        print(f"{name:22} {own:>16} {best[own] * 1e6:8.1f} {peer * 1e6:10.1f} {best[own] / peer:6.2f}", flush=True)


if __name__ == "__main__":
    main()
