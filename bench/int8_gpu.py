"""Integer layers on a GPU: the convolutions of ResNet-50 by every tile of the tensor-core kernel.

Each row is a layer: the median microseconds by each tile, the tile that is chosen with a star, and 10^12 operations a
second by the fastest. With --check results of one picture are compared with the reference.
Run: python bench/int8_gpu.py [--batch 32] [--rounds 20] [--check]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from megengine.core.dtype import qint8, quint8
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer, reference_runner
from megengine.kernels import cuda
from megengine.kernels.cuda import int_layers
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_layout import to_first, to_last
from megengine.kernels.cuda.runtime import Runtime, runtime_of
from megengine.kernels.problem import Problem

# picture, channels of x and y, window, stride, residual, how often
LAYERS = [
    (224, 3, 64, 7, 2, False, 1), (56, 64, 64, 1, 1, False, 1), (56, 64, 64, 3, 1, False, 3),
    (56, 64, 256, 1, 1, False, 1), (56, 64, 256, 1, 1, True, 3), (56, 256, 64, 1, 1, False, 2),
    (56, 256, 128, 1, 1, False, 1),
    (56, 128, 128, 3, 2, False, 1), (56, 256, 512, 1, 2, False, 1), (28, 128, 512, 1, 1, True, 4),
    (28, 512, 128, 1, 1, False, 3), (28, 128, 128, 3, 1, False, 3), (28, 512, 256, 1, 1, False, 1),
    (28, 256, 256, 3, 2, False, 1), (28, 512, 1024, 1, 2, False, 1), (14, 256, 1024, 1, 1, True, 6),
    (14, 1024, 256, 1, 1, False, 5), (14, 256, 256, 3, 1, False, 5), (14, 1024, 512, 1, 1, False, 1),
    (14, 512, 512, 3, 2, False, 1), (14, 1024, 2048, 1, 2, False, 1), (7, 512, 2048, 1, 1, True, 3),
    (7, 2048, 512, 1, 1, False, 2), (7, 512, 512, 3, 1, False, 2),
]  # fmt: skip


def layer(size: int, c: int, o: int, kernel: int, stride: int, residual: bool, batch: int) -> tuple[Any, ...]:
    """Arrays and attributes of a convolution."""
    rng = np.random.default_rng(0)
    x, y, pad = quint8(0.02, 13), qint8(0.05, 3), kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    arrays = [
        rng.integers(0, 256, (batch, c, size, size)).astype(np.uint8),
        rng.integers(-127, 128, (o, c, kernel, kernel)).astype(np.int8),
        rng.integers(-900, 900, o).astype(np.int32),
        ((rng.random(o) + 0.5) / (75 * np.sqrt(c * kernel * kernel))).astype(np.float32),
        rng.normal(0, 20, o).astype(np.float32),
    ]
    dtypes: list[Any] = [x, *(a.dtype for a in arrays[1:])]
    if residual:
        arrays.append(rng.integers(-128, 128, (batch, o, out, out)).astype(np.int8))
        dtypes.append(y)
    attrs = {"stride": (stride,) * 2, "padding": ((pad,) * 2,) * 2, "dilation": (1, 1), "groups": 1}
    return arrays, dtypes, attrs | {"lo": -3, "hi": 124, "ratio": 0.75 if residual else 0.0, "dtype": y}


def problem_of(arrays: list[np.ndarray], dtypes: list[Any], attrs: dict[str, Any], device: str) -> Problem:
    """The problem of such a convolution."""
    specs = [TensorSpec(a.shape, d, device) for a, d in zip(arrays, dtypes, strict=True)]
    return Problem("qconv2d", specs, (infer("qconv2d", specs, attrs),), attrs)


def _microseconds(runtime: Runtime, run: Callable[[], DeviceArray], rounds: int) -> float:
    """The median of recordings of ten launches, so that the host does not count."""
    recording = runtime.record(lambda: [run() for _ in range(10)])
    replay = recording.replay if recording else lambda: [run() for _ in range(10)]
    return 100 * statistics.median(runtime.milliseconds(replay) for _ in range(rounds))


def measure(runtime: Runtime, size: tuple[Any, ...], batch: int, rounds: int, check: bool) -> tuple[str, float]:
    """A row, and microseconds by the fastest tile."""
    arrays, dtypes, attrs = layer(*size[:6], batch)
    problem = problem_of(arrays, dtypes, attrs, runtime.name)
    values = [runtime.upload(a) for a in arrays]
    moving = [to_last(values[0], int_layers.useful_pitch(problem)), *values[1:5], *map(to_last, values[5:])]
    form = int_layers.prepared(problem, moving[0].shape[3], runtime.architecture).form
    times = {}
    for tile in int_layers.TILES:
        run = partial(int_layers.layer_last, problem, replace(form, tile=tile), *moving)
        found = run()
        times[tile] = _microseconds(runtime, run, rounds)
        if check:
            want = reference_runner(get_op("qconv2d"), problem_of(arrays, dtypes, attrs, "cpu0"), True)(*arrays)
            np.testing.assert_array_equal(to_first(found).numpy(), want)
    best = min(times.values())
    words = "  ".join(f"{t.pixels}x{t.channels} {v:6.1f}{'*' if t == form.tile else ' '}" for t, v in times.items())
    operations = 2 * problem.outputs[0].size * arrays[1][0].size
    return f"{size!s:40} {words} {operations / best / 1e6:6.0f} Tops", best * size[6]


def main() -> int:
    """Measure all layers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if (reason := cuda.unavailable_reason()) is not None:
        print(f"nothing is measured: {reason}")
        return 0
    runtime, total = runtime_of("gpu0"), 0.0
    for size in LAYERS:
        row, time = measure(runtime, size, 1 if given.check else given.batch, given.rounds, given.check)
        print(row, flush=True)
        total += time
    print(f"all {sum(s[6] for s in LAYERS)} layers by the fastest tiles: {total:.0f} us")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
