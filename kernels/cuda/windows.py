"""Windows of an array as an array of their own, and the sum of windows back into one: unfold, fold."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.text import counted
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import TYPES, Program, program, type_name
from megengine.kernels.problem import Problem

MOST_AXES = 4
_FIELDS = ("size", "count", "kernel", "stride", "before", "dilation")
_WINDOWS = np.dtype([("axes", "i4"), ("taps", "i4"), *((name, "i4", MOST_AXES) for name in _FIELDS)], align=True)


def usable(problem: Problem) -> str | None:
    """Why a kernel of windows does not take a problem: too many axes."""
    axes = len(problem.attrs["stride"])
    return None if axes <= MOST_AXES else f"windows of {counted(axes, 'axis')}; at most {MOST_AXES}"


@functools.lru_cache(maxsize=4096)
def _described(problem: Problem) -> tuple[np.ndarray, np.int64]:
    """The windows of a problem, and the elements of its result."""
    attrs, axes = problem.attrs, len(problem.attrs["stride"])
    image, cols = (problem.inputs[0], problem.outputs[0])[:: 1 if problem.op == "unfold" else -1]
    made = np.zeros((), _WINDOWS)
    kernel = cols.shape[2 + axes :]
    values: dict[str, Any] = {
        "size": image.shape[2:],
        "count": cols.shape[2 : 2 + axes],
        "kernel": kernel,
        "stride": attrs["stride"],
        "before": [a for a, _ in attrs["padding"]],
        "dilation": attrs["dilation"],
    }
    made["axes"], made["taps"] = axes, math.prod(kernel)
    for name, value in values.items():
        made[name][:axes] = value
    return made, np.int64(problem.outputs[0].size)


def unfold(problem: Problem, x: DeviceArray) -> DeviceArray:
    """Windows of x [N,C,*size] as [N,C,*count,*kernel]; places outside hold `value`."""
    out = x.runtime.empty(problem.outputs[0].shape, x.dtype)
    described, count = _described(problem)
    fill = np.asarray(x.dtype.type(problem.attrs["value"])).view(f"u{x.dtype.itemsize}")
    code = program("windows.cu", SIZE=x.dtype.itemsize, TYPE="int")
    x.runtime.each(code, "unfold", out.size, (out, x, described, fill, count))
    return out


def fold(problem: Problem, cols: DeviceArray) -> DeviceArray:
    """The sum of windows [N,C,*count,*kernel] in [N,C,*size], added tap by tap from the first."""
    out = cols.runtime.empty(problem.outputs[0].shape, cols.dtype)
    described, count = _described(problem)
    code = program("windows.cu", SIZE=cols.dtype.itemsize, TYPE=type_name(cols.dtype))
    cols.runtime.each(code, "fold", out.size, (out, cols, described, count))
    return out


def programs() -> Iterator[Program]:
    """Every program that these kernels launch."""
    for size in (1, 2, 4, 8):
        yield program("windows.cu", SIZE=size, TYPE="int")
    for dtype, name in TYPES.items():
        yield program("windows.cu", SIZE=storage_of(dtype).itemsize, TYPE=name)
