"""Recurrent layers over floats on a GPU: one product of all inputs, then one launch a step (two for some GRUs).

A step computes the recurrent products and the gates together: a warp for each number of a state where samples are few,
else tiles of samples and numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_constants import bounds
from megengine.kernels.cuda.products import Launch, launch_of, multiply, product_of
from megengine.kernels.cuda.runtime import Runtime
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.cuda.tensor_cores import Precision
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference.recurrent import FUNCTIONS_OF, GATES, PARAMETERS

# what a launch computes -> the source's number of it, and its gates
_PARTS = {"rnn": (0, 1), "gru": (1, 3), "lstm": (2, 4), "gru gates": (3, 2), "gru state": (4, 1)}
_CODES = {name: code for code, name in enumerate(PARAMETERS)}  # in the order of the source's enumeration
_FEW_SAMPLES = 4  # for which each weight is read once for each of them
_LAYER = np.dtype(
    [
        *((name, "i4") for name in ("directions", "n", "hidden", "all", "functions")),
        *((name, "i4") for name in ("backwards", "input_forget", "rounds")),
        *((name, "f4") for name in ("scale", "lo", "hi", "more")),
        ("clip", "f8"),
        ("codes", "i4", 6),
        ("factors", "f8", 12),
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A layer: the parts of a step, what stands behind their arrays, and the grid of every launch."""

    parts: tuple[Program, ...]
    layer: np.ndarray
    kernel: str
    grid: tuple[int, int, int]
    steps: int


def _program(dtype: np.dtype, part: str) -> Program:
    """The program of a part; float32 rounds after each operation, as the reference does."""
    cell, gates = _PARTS[part]
    return program("recurrent.cu", exact=dtype == np.float32, TYPE=type_name(dtype), CELL=cell, GATES=gates)


def _layer(problem: Problem, n: int, hidden: int) -> np.ndarray:
    attrs, state = problem.attrs, problem.attrs.get("state")
    made = np.zeros((), _LAYER)
    made["directions"], made["n"], made["hidden"] = problem.outputs[0].shape[-3], n, hidden
    made["all"], made["functions"] = GATES[attrs.cell], len(FUNCTIONS_OF[attrs.cell])
    made["backwards"], made["input_forget"] = attrs.direction == "reverse", attrs.input_forget
    if state is not None:
        made["rounds"], made["scale"], (made["lo"], made["hi"]) = 1, state.only_scale, bounds(state)
    made["clip"] = attrs.clip
    count = len(attrs.activations)
    made["codes"][:count] = [_CODES[name] for name in attrs.activations]
    made["factors"][: 2 * count] = np.array([attrs.alphas, attrs.betas]).T.reshape(-1)
    return made


@functools.lru_cache(maxsize=1024)
def _plan(problem: Problem) -> _Plan:
    attrs, dtype = problem.attrs, storage_of(problem.inputs[0].dtype)
    steps, directions, n, hidden = problem.outputs[0].shape[-4:]
    apart = attrs.cell == "gru" and not attrs.linear_before_reset
    parts = tuple(_program(dtype, part) for part in (("gru gates", "gru state") if apart else (attrs.cell,)))
    if n <= _FEW_SAMPLES:
        kernel, grid = "cuda_recurrent_warps", (-(-directions * n * hidden // 8), 1, 1)
    else:
        kernel, grid = "cuda_recurrent_tiles", (-(-hidden // 8), -(-n // 32), directions)
    return _Plan(parts, _layer(problem, n, hidden), kernel, grid, steps)


@functools.lru_cache(maxsize=1024)
def _product(rows: int, columns: int, depth: int, dtype: np.dtype, architecture: int, tf32: bool) -> Launch:
    """That of inputs [rows, depth] and weights [columns, depth]; `tf32` is a setting that the launch depends on."""
    product = product_of((rows, depth), (columns, depth), (rows, columns), transpose_b=True)
    return launch_of(product, dtype, architecture=architecture)


def _sums(x: DeviceArray, w: DeviceArray) -> DeviceArray:
    """Inputs [T,N,I] by the weights [D,gates,I] of all directions: [T*N,D*gates]."""
    rows, columns, depth = math.prod(x.shape[-3:-1]), math.prod(w.shape[-3:-1]), x.shape[-1]
    if not depth:
        return x.runtime.zeros((rows, columns), x.dtype)
    out = x.runtime.empty((rows, columns), x.dtype)
    if out.size:
        launch = _product(rows, columns, depth, x.dtype, x.runtime.architecture, Precision.tf32)
        if launch.wide and (x.address | w.address) % 16:
            launch = _product(rows, columns, depth, x.dtype, 0, False)
        multiply(launch, x, w, out)
    return out


def _started(runtime: Runtime, given: DeviceArray | None, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
    """The state of a layer without steps."""
    return runtime.zeros(shape, dtype) if given is None else runtime.duplicate(given).reshape(shape)


def _recurrent(problem: Problem, x: DeviceArray, w: DeviceArray, r: DeviceArray, *more: DeviceArray) -> Any:
    plan, runtime, dtype = _plan(problem), x.runtime, x.dtype
    given = dict(zip(problem.attrs.given, more, strict=True))
    shapes = [spec.shape for spec in problem.outputs]
    y, h, c = runtime.empty(shapes[0], dtype), given.get("h"), given.get("c")
    if not plan.steps or not y.size:
        states = zip((h, c), shapes[1:], strict=False)
        return (y, *(_started(runtime, state, shape, dtype) for state, shape in states))
    always = (_sums(x, w), r, given.get("bias"), given.get("peepholes"), given.get("lengths"))
    new = lambda: runtime.empty(shapes[1], dtype)  # noqa: E731
    spare = [new(), new()]  # the steps write one of them and read the other
    long = len(shapes) == 3
    c_out = new() if long else None
    reset, update = (new(), new()) if len(plan.parts) == 2 else (None, None)
    for step in range(plan.steps):
        numbers = (np.int32(step), np.int32(plan.steps), plan.layer)
        source = h
        if reset is not None:
            gates = (*always, h, h, reset, None, None, update, y, *numbers)
            runtime.launch(plan.parts[0], plan.kernel, plan.grid, 256, gates)
            source = reset
        h_out = spare[step % 2]
        arrays = (*always, source, h, h_out, c, c_out, update, y, *numbers)
        runtime.launch(plan.parts[-1], plan.kernel, plan.grid, 256, arrays)
        h, c = h_out, c_out
    return (y, h, c) if long else (y, h)


def _usable(problem: Problem) -> str | None:
    dtypes = {storage_of(s.dtype) for s in problem.outputs}
    if not dtypes <= {np.dtype(np.float32), np.dtype(np.float64)}:
        return f"float32 and float64 only, got {', '.join(sorted(map(str, dtypes)))}"
    _, directions, n, _ = problem.outputs[0].shape[-4:]
    return f"{n} samples" if -(-n // 32) > 65535 or directions > 2 else None


KERNELS: dict[str, tuple[Kernel, ...]] = {"recurrent": (EagerKernel("cuda_recurrent", _recurrent, _usable),)}


def programs() -> Iterator[Program]:
    """Every program that the kernel launches beside products."""
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        yield from (_program(dtype, part) for part in _PARTS)
