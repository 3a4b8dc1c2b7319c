"""Recurrent layers with integer products on a GPU, docs/integer-arithmetic.md bit for bit: 1 or 2 launches a step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_constants import bounds, constant
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference.recurrent import FUNCTIONS_OF, PARAMETERS

_CELLS = ("rnn", "gru", "lstm")  # as the source numbers them
_CODES = {name: code for code, name in enumerate(PARAMETERS)}  # in the order of the source's enumeration
Numbers = tuple[Any, ...]


def _program(dtype: Any) -> Program:
    return program("int_recurrent.cu", YT=type_name(storage_of(dtype)))


@functools.lru_cache(maxsize=512)
def _numbers(problem: Problem) -> tuple[Program, Numbers, Numbers]:
    """The program, what rounds a state to integers, and what stands behind the arrays of a step."""
    a, (_, directions, n, hidden) = problem.attrs, problem.outputs[0].shape
    scale, ends = np.float32(a.dtype.only_scale), tuple(map(np.int32, bounds(a.dtype)))
    sizes = (a.dtype.zero_point, _CELLS.index(a.cell), directions, n, hidden, len(FUNCTIONS_OF[a.cell]))
    return _program(a.dtype), (scale, *ends), (np.float32(a.clip), scale, *ends, *map(np.int32, sizes))


def _recurrent(problem: Problem, sums: DeviceArray, r: DeviceArray, M: DeviceArray, *more: DeviceArray) -> Any:
    unit, rounding, numbers = _numbers(problem)
    a, runtime = problem.attrs, sums.runtime
    steps, directions, n, hidden = problem.outputs[0].shape
    given: Mapping[str, DeviceArray] = dict(zip(a.given, more, strict=True))
    size = directions * n * hidden
    new = lambda dtype: runtime.empty((directions, n, hidden), dtype)  # noqa: E731
    y = runtime.empty(problem.outputs[0].shape, storage_of(a.dtype))
    h, c = new(np.float32), new(np.float32) if a.cell == "lstm" else None
    now, then = new(np.int32), new(np.int32)
    begin = (given.get("h"), given.get("c"), h, c, now, *rounding, np.int64(size))
    runtime.each(unit, "cuda_recurrent_begin", size, begin)
    key = (tuple(a.activations), tuple(a.alphas), tuple(a.betas))
    codes = constant(runtime, (key, "codes"), lambda: np.array([_CODES[f] for f in key[0]], np.int32))
    factors = constant(runtime, (key, "factors"), lambda: np.array(key[1:], np.float32).T)
    arrays = (sums, r.view(np.int8), M, given.get("bias"), given.get("peepholes"), codes, given.get("lengths"), factors)
    reset = a.cell == "gru" and not a.linear_before_reset
    update, product = (new(np.float32), new(np.int32)) if reset else (None, None)
    blocks, modes = -(-size // 8), (np.int32(a.direction == "reverse"), np.int32(a.input_forget))
    for step in range(steps):
        when = (np.int32(step), np.int32(steps))
        if reset:
            gate = (h, now, update, product, *when, modes[0], *arrays, *numbers)
            runtime.launch(unit, "cuda_recurrent_reset", blocks, 256, gate)
        cell = (h, c, now, then, update, product, y, *when, *modes, *arrays, *numbers)
        runtime.launch(unit, "cuda_recurrent_step", blocks, 256, cell)
        now, then = then, now
    return (y, h) if c is None else (y, h, c)


KERNELS: dict[str, tuple[Kernel, ...]] = {"qrecurrent": (EagerKernel("cuda_qrecurrent", _recurrent),)}


def programs() -> Iterator[Program]:
    """Every program that the kernel launches."""
    yield from (_program(np.dtype(t)) for t in (np.uint8, np.int8, np.int16))
