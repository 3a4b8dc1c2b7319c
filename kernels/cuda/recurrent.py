"""Recurrent layers of floats on a GPU: all products of the inputs in one launch, then one or two for each step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_constants import bounds, constant
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference.recurrent import FUNCTIONS_OF, GATES, PARAMETERS

_CELLS = ("rnn", "gru", "lstm")  # as the source numbers them
_CODES = {name: code for code, name in enumerate(PARAMETERS)}  # in the order of the source's enumeration
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_SIDE, _UNITS, _SAMPLES = 64, 32, 8  # of the blocks
Numbers = tuple[Any, ...]


def _usable(problem: Problem) -> str | None:
    dtype = problem.outputs[0].dtype
    return None if dtype in _FLOATS else f"float32 and float64 only, got {dtype}"


def _program(dtype: Any) -> Program:
    return program("recurrent.cu", TYPE=type_name(dtype))


@functools.lru_cache(maxsize=512)
def _numbers(problem: Problem) -> tuple[Numbers, Numbers]:
    """What rounds a state (nothing: a scale of 0), and what stands behind the arrays of a step."""
    a, (_, directions, n, hidden) = problem.attrs, problem.outputs[0].shape[-4:]
    state = a.get("state")
    scale, ends = (0.0, (0, 0)) if state is None else (state.only_scale, bounds(state))
    rounding = (np.float32(scale), *map(np.int32, ends))
    sizes = (_CELLS.index(a.cell), directions, n, hidden, len(FUNCTIONS_OF[a.cell]))
    return rounding, (problem.outputs[0].dtype.type(a.clip), *rounding, *map(np.int32, sizes))


def _sums(problem: Problem, unit: Program, x: DeviceArray, w: DeviceArray, bias: DeviceArray | None) -> DeviceArray:
    """What the gates are before the products of states: [steps * n, directions * gates * hidden]."""
    a, (_, directions, _, hidden) = problem.attrs, problem.outputs[0].shape[-4:]
    (steps, n, width), gates = x.shape[-3:], GATES[a.cell] * hidden
    out = x.runtime.empty((steps * n, directions * gates), x.dtype)
    apart = gates - hidden if a.cell == "gru" and a.linear_before_reset else gates
    grid = (-(-steps * n // _SIDE), -(-directions * gates // _SIDE))
    numbers = (np.int64(steps * n), *map(np.int32, (width, directions * gates, gates, apart)))
    x.runtime.launch(unit, "cuda_recurrent_sums", grid, 256, (x, w, bias, out, *numbers))
    return out


def _recurrent(problem: Problem, x: DeviceArray, w: DeviceArray, r: DeviceArray, *more: DeviceArray) -> Any:
    rounding, numbers = _numbers(problem)
    a, runtime, unit = problem.attrs, x.runtime, _program(x.dtype)
    steps, directions, n, hidden = problem.outputs[0].shape[-4:]
    given: Mapping[str, DeviceArray] = dict(zip(a.given, more, strict=True))
    new = lambda spec: runtime.empty(spec.shape, x.dtype)  # noqa: E731
    y, h = map(new, problem.outputs[:2])
    c = new(problem.outputs[2]) if a.cell == "lstm" else None
    now, then = new(problem.outputs[1]), new(problem.outputs[1])
    begin = (given.get("h"), given.get("c"), h, c, now, *rounding, np.int64(h.size))
    runtime.each(unit, "cuda_recurrent_begin", h.size, begin)
    sums = _sums(problem, unit, x, w, given.get("bias"))
    key = (tuple(a.activations), tuple(a.alphas), tuple(a.betas))
    codes = constant(runtime, (key, "codes"), lambda: np.array([_CODES[f] for f in key[0]], np.int32))
    factors = constant(runtime, (key, x.dtype), lambda: np.array(key[1:], x.dtype).T)
    arrays = (sums, r, given.get("bias"), given.get("peepholes"), codes, given.get("lengths"), factors)
    reset = a.cell == "gru" and not a.linear_before_reset
    update, product = (new(problem.outputs[1]), new(problem.outputs[1])) if reset else (None, None)
    grid, modes = (-(-n // _SAMPLES), -(-hidden // _UNITS), directions), (a.direction == "reverse", a.input_forget)
    backwards, forgets = map(np.int32, modes)
    for step in range(steps):
        when = (np.int32(step), np.int32(steps), backwards)
        if reset:
            gate = (h, now, update, product, *when, *arrays, *numbers)
            runtime.launch(unit, "cuda_recurrent_reset", grid, 256, gate)
        cell = (h, c, now, then, update, product, y, *when, forgets, *arrays, *numbers)
        runtime.launch(unit, "cuda_recurrent_step", grid, 256, cell)
        now, then = then, now
    return (y, h) if c is None else (y, h, c)


KERNELS: dict[str, tuple[Kernel, ...]] = {"recurrent": (EagerKernel("cuda_recurrent", _recurrent, _usable),)}


def programs() -> Iterator[Program]:
    """Every program that the kernel launches."""
    yield from map(_program, _FLOATS)
