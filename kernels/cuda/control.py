"""Ops that run graphs, on a GPU: conditions and limits are copied to main memory, bodies run op by op on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import ShapeError
from megengine.core.sizes import is_open
from megengine.core.spec import TensorSpec
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.moves import copy_part
from megengine.kernels.cuda.placing import placed
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

MOST_ROUNDS = 1 << 20  # of a loop without a limit of its own, as in main memory


def _first(x: DeviceArray) -> Any:
    return x.numpy().reshape(-1)[0]


def _results(values: Sequence[Any], device: str) -> Any:
    """The results of a graph; constants of it may lie elsewhere."""
    made = [placed(value, device) for value in values]
    return made[0] if len(made) == 1 else tuple(made)


def _if(problem: Problem, condition: DeviceArray, *given: DeviceArray) -> Any:
    chosen = problem.attrs["then" if _first(condition) else "otherwise"]
    return _results(chosen.run(given), condition.runtime.name)


def _stacked(values: Sequence[DeviceArray]) -> DeviceArray:
    """Arrays of one shape along a new first axis."""
    first = values[0]
    out = first.runtime.empty((len(values), *first.shape), first.dtype)
    for k, value in enumerate(values):
        if value.shape != first.shape:
            raise ShapeError(
                f"loop: a round gives shape {value.shape}, the first one {first.shape}; expected one shape"
            )
        copy_part(out, value, (first.size,), (1,), (1,), (0, k * first.size))
    return out


def _loop(problem: Problem, *given: DeviceArray) -> Any:
    attrs, device = problem.attrs, problem.device
    body, states = attrs["body"], attrs["states"]
    rest = list(given)
    limit = rest.pop(0) if attrs["limited"] else None
    condition = rest.pop(0) if attrs["asked"] else None
    values, outer = rest[:states], rest[states:]
    most = MOST_ROUNDS if limit is None else int(_first(limit))
    going, done, columns = condition is None or bool(_first(condition)), 0, None
    yes = placed(np.array(True), device)
    while going and done < most:
        number = placed(np.array(done, np.int64), device)
        more, *made = (placed(value, device) for value in body.run([number, yes, *values, *outer]))
        going, values, done = bool(_first(more)), made[:states], done + 1
        columns = [[] for _ in made[states:]] if columns is None else columns
        for column, value in zip(columns, made[states:], strict=True):
            column.append(value)
    if limit is None and done == MOST_ROUNDS:
        raise ShapeError(f"loop: it goes on after {MOST_ROUNDS} rounds")
    stacked = _no_rounds(problem) if columns is None else map(_stacked, columns)
    return _results([*values, *stacked], device)


def _no_rounds(problem: Problem) -> list[np.ndarray]:
    """The stacked results of a loop that ends before its first round."""
    attrs = problem.attrs
    own = [TensorSpec((), np.dtype(np.int64)), TensorSpec((), np.dtype(np.bool_))]
    operands = problem.inputs[attrs["limited"] + attrs["asked"] :]
    specs = attrs["body"].specs([*own, *operands])[1 + attrs["states"] :]
    shapes = [(0, *(0 if is_open(n) else n for n in spec.shape)) for spec in specs]
    return [np.zeros(shape, storage_of(spec.dtype)) for shape, spec in zip(shapes, specs, strict=True)]


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "if": (EagerKernel("cuda_if", _if),),
    "loop": (EagerKernel("cuda_loop", _loop),),
}
