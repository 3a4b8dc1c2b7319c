"""Integer layers on a GPU: the convolutions of ResNet-50 by every tile of the tensor-core kernel.

Each row is a layer: microseconds of the fastest tile, of the floor (bytes of all arrays, or products at full speed),
its share, 10^12 operations a second, then the median microseconds by each tile, the fastest first (+), that of the rule
with a star. Last come sums of the network. With --check one picture is compared with the reference, too.
Run: python bench/int8_gpu.py [--batch 32] [--rounds 9] [--check]
"""

from __future__ import annotations

import argparse
import math
import time
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
from megengine.plan.gpu_tuning import candidates, microseconds

BYTES, OPERATIONS = 4.3e12, 1.5e15  # a second, of an H200

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


def floor(problem: Problem) -> float:
    """Microseconds that the layer takes at least: by the bytes of its arrays, or by its products at full speed."""
    x, w, y = problem.inputs[0].shape, problem.inputs[1].shape, problem.outputs[0].shape
    stride, window = problem.attrs.stride, w[2:]
    read = math.prod(x) // (math.prod(stride) if window == (1, 1) else 1)
    moved = read + math.prod(w) + math.prod(y) * (2 if len(problem.inputs) > 5 else 1)
    return max(moved / BYTES, 2 * math.prod(y) * math.prod(w[1:]) / OPERATIONS) * 1e6


def check(runtime: Runtime, size: tuple[Any, ...]) -> None:
    """Compare one picture by each tile with the reference."""
    arrays, dtypes, attrs = layer(*size[:6], 1)
    problem = problem_of(arrays, dtypes, attrs, runtime.name)
    want = reference_runner(get_op("qconv2d"), problem_of(arrays, dtypes, attrs, "cpu0"), True)(*arrays)
    values = moving(runtime, problem, arrays)
    for tile in candidates(problem, runtime):
        found = to_first(int_layers.conv_last(problem, *values, tile=tile)).numpy()
        np.testing.assert_array_equal(found, want, err_msg=f"{size} by {tile.name}")


def moving(runtime: Runtime, problem: Problem, arrays: list[np.ndarray]) -> list[DeviceArray]:
    """The arrays on the GPU, channels-last."""
    values = [runtime.upload(a) for a in arrays]
    return [to_last(values[0], int_layers.useful_pitch(problem)), *values[1:5], *map(to_last, values[5:])]


def measure(runtime: Runtime, size: tuple[Any, ...], batch: int, rounds: int) -> tuple[str, list[float]]:
    """A row, and microseconds of all such layers: by the tile of the rule, by the fastest, and at least."""
    arrays, dtypes, attrs = layer(*size[:6], batch)
    problem = problem_of(arrays, dtypes, attrs, runtime.name)
    times = microseconds(runtime, problem, moving(runtime, problem, arrays), rounds)
    ruled = int_layers.prepared(problem, int_layers.useful_pitch(problem), runtime.architecture).form.tile
    best, least = min(times.values()), floor(problem)
    marks = {tile: ("*" if tile == ruled else "") + ("+" if times[tile] == best else "") for tile in times}
    words = "  ".join(f"{t.name} {v:.1f}{marks[t]}" for t, v in sorted(times.items(), key=lambda item: item[1]))
    operations = 2 * problem.outputs[0].size * arrays[1][0].size
    about = f"{best:6.1f} us  floor {least:5.1f} ({least / best:4.0%})  {operations / best / 1e6:5.0f} Tops"
    return f"{size!s:40} {about}  {words}", [size[6] * v for v in (times[ruled], best, least)]


def main() -> int:
    """Measure all layers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if (reason := cuda.unavailable_reason()) is not None:
        print(f"nothing is measured: {reason}")
        return 0
    runtime, begin = runtime_of("gpu0"), time.perf_counter()
    totals = np.zeros(3)
    for size in LAYERS:
        if given.check:
            check(runtime, size)
        row, found = measure(runtime, size, given.batch, given.rounds)
        print(row, flush=True)
        totals += found
    names = ("the tiles of the rule", "the fastest tiles", "the floor")
    for name, total in zip(names, totals, strict=True):
        print(f"all {sum(s[6] for s in LAYERS)} layers by {name}: {total:.0f} us")
    print(f"{runtime.model}, batch {given.batch}, measured in {time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
