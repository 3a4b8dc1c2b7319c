"""Steps of elements at places that tensors of indices name, and of windows that overlap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.kernels import _core
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import long_steps
from megengine.kernels.problem import Problem, no_elements

NUMBERS = ("float32", "int32", "int64", "int8", "uint8")  # of steps that compute; others move anything
_MOST_AXES = 3


def _strides(spec: TensorSpec) -> list[int]:
    """Elements between neighbours of a C-contiguous value."""
    return [math.prod(spec.shape[k + 1 :]) for k in range(spec.ndim)]


def _seen(shape: tuple[int, ...], target: tuple[int, ...], item: int = 1) -> list[int]:
    """Strides of a C-contiguous array seen in a shape to which it broadcasts, in elements, or bytes of `item`."""
    steps = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    probe = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), shape, steps, writeable=False)
    return [n * item for n in np.broadcast_to(probe, target).strides]


def _item(spec: TensorSpec) -> int:
    return storage_of(spec.dtype).itemsize


def of_places(indices: tuple[TensorSpec, ...], problem: Problem) -> str | None:
    """Why a step cannot read these indices; None if it can."""
    kinds = {str(s.dtype) for s in indices}
    if kinds - {"int32", "int64"}:
        return f"indices of {', '.join(sorted(kinds))}; only int32 and int64"
    return no_elements(problem)


def _updates(problem: Problem) -> str | None:
    x, index = problem.inputs[:2]
    dtype = str(storage_of(x.dtype))
    if problem.attrs.reduction != "none" and dtype not in NUMBERS:
        return f"{dtype}; only {', '.join(NUMBERS)}"
    if _item(x) not in (1, 2, 4, 8):
        return f"elements of {counted(_item(x), 'byte')}"
    return of_places((index,), problem)


# ---------------------------------------------------------------- selections by index


def _select_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    """Blocks taken from x, or (set_index) put into a copy of it."""
    puts = problem.op == "set_index"
    x, indices, pattern = problem.inputs[0], problem.inputs[1 + puts :], problem.attrs.pattern
    item, strides = _item(x), [n * _item(x) for n in _strides(x)]
    places = [axis for axis, part in enumerate(pattern) if part == "i"]
    ranges = {a: range(*slice(*p).indices(x.shape[a])) for a, p in enumerate(pattern) if p != "i"}
    together = not places or places == list(range(places[0], places[-1] + 1))
    front = [a for a in ranges if together and places and a < places[0]]
    behind = [a for a in ranges if a not in front]
    shape = np.broadcast_shapes(*(s.shape for s in indices))
    target = (*(len(ranges[a]) for a in front), *shape, *(len(ranges[a]) for a in behind))
    part = _seen(problem.inputs[1].shape if puts else target, target, item)
    axes = [
        [[len(ranges[a]) for a in some], [ranges[a].step * strides[a] for a in some], part[begin : begin + len(some)]]
        for some, begin in ((front, 0), (behind, len(front) + len(shape)))
    ]
    block, rest = item, axes[1]
    while rest[0] and rest[1][-1] == rest[2][-1] == block:  # what lies together is moved together
        block *= rest[0].pop()
        rest[1].pop(), rest[2].pop()
    return _core.select_step(
        puts=puts,
        start=sum(r.start * strides[a] for a, r in ranges.items()),
        block=block,
        bytes=x.size * item,
        front=axes[0],
        shape=[list(shape), [0] * len(shape), part[len(front) : len(front) + len(shape)]],
        behind=rest,
        indices=[[_item(s), x.shape[a], s.size, strides[a]] for s, a in zip(indices, places, strict=True)],
        steps=[_seen(s.shape, shape) for s in indices],
    )


def _set_usable(problem: Problem) -> str | None:
    x, value, *indices = problem.inputs
    if not indices:
        return "ranges alone"
    if _item(x) != _item(value):
        return f"{value.dtype} into {x.dtype}"
    return of_places(tuple(indices), problem)


# ---------------------------------------------------------------- places along an axis, and coordinates


def _elements(problem: Problem) -> dict[str, Any]:
    x, index = problem.inputs[:2]
    axis, steps = problem.attrs.axis % x.ndim, _strides(x)
    return {
        "lengths": list(index.shape),
        "steps": [0 if a == axis else n for a, n in enumerate(steps)],
        "stride": steps[axis],
        "length": x.shape[axis],
        "index_item": _item(index),
    }


def _combination(problem: Problem) -> dict[str, Any]:
    x = problem.inputs[0]
    return {
        "reduction": problem.attrs.reduction,
        "type": str(storage_of(x.dtype)),
        "bytes": _item(x),
        "size": x.size,
    }


def _gather_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    return _core.gather_step(bytes=_item(problem.inputs[0]), **_elements(problem))


def _gather_usable(problem: Problem) -> str | None:
    if _item(problem.inputs[0]) not in (1, 2, 4, 8):
        return f"elements of {counted(_item(problem.inputs[0]), 'byte')}"
    return of_places((problem.inputs[1],), problem)


def _scatter_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    return _core.scatter_step(**_combination(problem), **_elements(problem))


def _blocks_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    x, index = problem.inputs[:2]
    depth = index.shape[-1]
    return _core.scatter_blocks_step(
        **_combination(problem),
        lengths=list(x.shape[:depth]),
        strides=_strides(x)[:depth],
        count=math.prod(index.shape[:-1]),
        block=math.prod(x.shape[depth:]),
        index_item=_item(index),
    )


# ---------------------------------------------------------------- windows


def _geometry(problem: Problem, size: tuple[int, ...], out: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, Any]:
    """How windows lie over the last axes of planes, which become three."""
    a, missing = problem.attrs, _MOST_AXES - len(size)
    before = tuple(begin for begin, _ in a.padding)
    ones = [(*(1,) * missing, *n) for n in (size, out, kernel, a.stride, a.dilation)]
    x = problem.inputs[0]
    return {
        "type": str(x.dtype),
        "planes": math.prod(x.shape[:2]),
        "lengths": [*ones, (*(0,) * missing, *before)],
    }


def _fold_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    size, shape = problem.attrs.size, problem.inputs[0].shape
    out, kernel = shape[2 : 2 + len(size)], shape[2 + len(size) :]
    return _core.fold_step(**_geometry(problem, size, out, kernel), threads=threads)


def _places_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    x, out, a = problem.inputs[0], problem.outputs[0], problem.attrs
    geometry = _geometry(problem, x.shape[2:], out.shape[2:], a.kernel)
    return _core.window_places_step(**geometry, columns_first=bool(a.columns_first), threads=threads)


def _windows_usable(problem: Problem) -> str | None:
    x, axes = problem.inputs[0], len(problem.attrs.padding)
    if str(x.dtype) not in NUMBERS:
        return f"{x.dtype}; only {', '.join(NUMBERS)}"
    return counted(axes, "axis") if axes > _MOST_AXES else long_steps(problem) or no_elements(problem)


own_take = StepKernel(
    "own_take", _select_step, lambda problem: of_places(problem.inputs[1:], problem), in_rows=True, refuses=True
)
own_put = StepKernel("own_put", _select_step, _set_usable, in_rows=True, refuses=True)
own_gather = StepKernel("own_gather", _gather_step, _gather_usable, in_rows=True, refuses=True)
own_scatter = StepKernel("own_scatter", _scatter_step, _updates, in_rows=True, refuses=True)
own_scatter_blocks = StepKernel("own_scatter_blocks", _blocks_step, _updates, in_rows=True, refuses=True)
own_fold = StepKernel("own_fold", _fold_step, _windows_usable, in_rows=True)
own_window_places = StepKernel("own_window_places", _places_step, _windows_usable, in_rows=True)
