"""Kernels of plans for floats that lie channels-last: convolutions and pooling of arrays [N,H,W,C].

They are for half precision, whose layers tensor cores compute, and for float32 where these may compute it (TF32).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from megengine.core.dtype import bfloat16, storage_of
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.convolution import channels_last
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.cuda.tensor_cores import Precision
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.problem import Problem

_HALVES = (np.dtype(np.float16), bfloat16)
_FIELDS = ("height", "width", "packs", "rows", "columns", "tall", "wide", "down", "across", "top", "left", "all")
_WINDOWS = np.dtype([(name, "i4") for name in _FIELDS])
_FARTHEST = (1 << 31) - 1


def _usable(problem: Problem) -> str | None:
    dtype = problem.inputs[0].dtype
    if dtype in _HALVES or (dtype == np.float32 and Precision.tf32):
        return None
    return f"{dtype} is computed in rows"


def _program(dtype: np.dtype, pack: int, largest: bool) -> Program:
    return program("channels_last.cu", TYPE=type_name(dtype), PACK=pack, MAXIMUM=int(largest))


@functools.lru_cache(maxsize=4096)
def _launch(problem: Problem) -> tuple[Program, np.void, int]:
    """The program, the windows, and the number of packs of channels of the result."""
    (x,), y, a = problem.inputs, problem.outputs[0], problem.attrs
    dtype, largest, channels = storage_of(x.dtype), problem.op == "max_pool2d", x.shape[1]
    pack = next(n for n in (16 // dtype.itemsize, 2, 1) if channels % n == 0)
    (top, _), (left, _) = a["padding"]
    numbers = (*x.shape[2:], channels // pack, *y.shape[2:], *a["kernel"], *a["stride"], top, left)
    windows = np.array((*numbers, int(a.get("count_include_pad", True))), _WINDOWS)[()]
    return _program(dtype, pack, largest), windows, y.size // pack


def pool_last(problem: Problem, x: DeviceArray) -> DeviceArray:
    """max_pool2d or avg_pool2d of x [N,H,W,C] -> [N,H,W,C]."""
    n, c, h, w = problem.outputs[0].shape
    y = x.runtime.empty((n, h, w, c), x.dtype)
    made, windows, count = _launch(problem)
    x.runtime.each(made, "cuda_pool_last", count, (x, y, np.int64(count), windows))
    return y


def _pools(problem: Problem) -> str | None:
    most = max(s.size for s in (*problem.inputs, *problem.outputs))
    return _usable(problem) or (f"{most} elements" if most > _FARTHEST else None)


LAST: dict[str, tuple[EagerKernel, ...]] = {
    **{
        op: (EagerKernel(f"cuda_{op}_last", channels_last, _usable),)
        for op in ("conv2d", "fused_conv2d", "conv_transpose2d")
    },
    **{op: (EagerKernel(f"cuda_{op}_last", pool_last, _pools),) for op in ("max_pool2d", "avg_pool2d")},
}


def programs() -> Iterator[Program]:
    """Programs of pools; those of convolutions are of their own family."""
    for dtype in (*_HALVES, np.dtype(np.float32)):
        for pack in (16 // dtype.itemsize, 2, 1):
            yield from (_program(dtype, pack, largest) for largest in (False, True))
