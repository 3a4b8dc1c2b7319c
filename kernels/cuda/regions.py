"""Pooling of regions of pictures: roi_pooling, its gradient, and the gradient's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.errors import IndexOutOfRangeError
from megengine.core.text import counted
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

_NAMES = ("regions", "pictures", "channels", "height", "width", "rows", "columns", "most", "average")
_REGIONS = np.dtype([(name, "i4") for name in _NAMES])


def _described(x: DeviceArray, rois: DeviceArray, size: tuple[int, int], mode: str) -> np.ndarray:
    made = np.zeros((), _REGIONS)
    values = (rois.shape[0], *x.shape, *size, max(size), mode == "average")
    for name, value in zip(_NAMES, values, strict=True):
        made[name] = value
    return made


def _program(x: DeviceArray) -> Program:
    return program("regions.cu", TYPE=type_name(x.dtype))


def _pool(problem: Problem, x: DeviceArray, rois: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    attrs, runtime, pictures = problem.attrs, x.runtime, x.shape[0]
    out, cells = (runtime.empty(spec.shape, d) for spec, d in zip(problem.outputs, (x.dtype, np.int32), strict=True))
    regions = _described(x, rois, attrs["size"], attrs["mode"])

    def error(number: int) -> Exception:
        return IndexOutOfRangeError(f"roi_pooling: picture {number} is out of range for {counted(pictures, 'picture')}")

    arguments = (cells, rois, regions, x.dtype.type(attrs["scale"]), runtime.refusal(error), np.int64(cells.size))
    runtime.each(_program(x), "find_cells", cells.size, arguments)
    runtime.each(_program(x), "pool_regions", out.size, (out, x, x, rois, cells, regions, np.int64(out.size)))
    return out, cells


def _chosen(problem: Problem, g: DeviceArray, x: DeviceArray, rois: DeviceArray, cells: DeviceArray) -> DeviceArray:
    out = x.runtime.empty(problem.outputs[0].shape, g.dtype)
    regions = _described(x, rois, problem.attrs["size"], problem.attrs["mode"])
    x.runtime.each(_program(x), "pool_regions", out.size, (out, g, x, rois, cells, regions, np.int64(out.size)))
    return out


def _backward(problem: Problem, ct: DeviceArray, x: DeviceArray, rois: DeviceArray, cells: DeviceArray) -> DeviceArray:
    runtime, mode = x.runtime, problem.attrs["mode"]
    out = runtime.empty(x.shape, x.dtype)
    size = (ct.shape[2], ct.shape[3])
    regions = _described(x, rois, size, mode)
    best = None
    if mode != "average":
        best = runtime.empty(ct.shape, np.int32)
        runtime.each(_program(x), "find_best", ct.size, (best, x, rois, cells, regions, np.int64(ct.size)))
    runtime.each(_program(x), "spread_regions", out.size, (out, ct, rois, cells, best, regions, np.int64(out.size)))
    return out


def _plain(problem: Problem) -> str | None:
    """Leaves halves to float32, which the dispatch converts to: places of cells take its digits."""
    dtypes = {spec.dtype for spec in problem.inputs if spec.dtype != np.int32}
    known = len(dtypes) == 1 and dtypes <= {np.dtype(np.float32), np.dtype(np.float64)}
    return None if known else "expected operands of one type, float32 or float64"


def programs() -> Iterator[Program]:
    """Every program that these kernels launch."""
    for name in ("float", "double"):
        yield program("regions.cu", TYPE=name)


def _kernel(name: str, run: Callable[..., Any]) -> tuple[Kernel, ...]:
    return (EagerKernel(f"cuda_{name}", run, _plain),)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "roi_pooling": _kernel("roi_pooling", _pool),
    "roi_pooling_backward": _kernel("roi_pooling_backward", _backward),
    "roi_pooling_chosen": _kernel("roi_pooling_chosen", _chosen),
}
