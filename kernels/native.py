"""Eager calls of native steps: conversion between logical NCHW arrays and the dense channels-last ones of steps."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.spec import TensorSpec
from megengine.kernels import _core, isa, memory
from megengine.kernels.kernel import Accepts, FlatKernel, MakeFlat, MakeStep, Run, StepKernel, Usable, accept_all
from megengine.kernels.problem import Problem

_PACKED_LIMIT = 8  # shapes of inputs for which packed copies of one weight are kept
_LIMIT = 512  # steps of one kernel without weights


def to_step(array: np.ndarray) -> np.ndarray:
    """The array as a step takes it: 4-D channels-last, everything else C-contiguous."""
    return np.asarray(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array, order="C")


def empty_for_step(spec: TensorSpec) -> np.ndarray:
    """Uninitialised storage of a step's output."""
    n = spec.shape
    return memory.empty((n[0], n[2], n[3], n[1]) if spec.ndim == 4 else n, storage_of(spec.dtype))


def from_step(array: np.ndarray) -> np.ndarray:
    """A step's output in its logical shape (4-D: a channels-last array seen as NCHW)."""
    return array.transpose(0, 3, 1, 2) if array.ndim == 4 else array


def _owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _place(array: np.ndarray) -> tuple:
    """A key of the memory of an array, unique as long as its owner lives."""
    if array.base is None:
        return (id(array),)
    return id(_owner(array)), array.__array_interface__["data"][0], array.strides


class StepCache:
    """Steps of eager calls, kept as long as the memory of the constants that they packed (views of it are short-lived).

    For the same constants only the steps of the last few problems are kept, since each holds a packed copy.
    """

    def __init__(self, make: MakeStep) -> None:
        self.make = make
        self.steps: dict[tuple, tuple[OrderedDict[tuple, Any], tuple]] = {}

    def get(self, problem: Problem, constants: dict[int, np.ndarray]) -> Any:
        places = tuple(map(_place, constants.values()))
        if places not in self.steps:
            drop = lambda _: self.steps.pop(places, None)  # noqa: E731
            self.steps[places] = OrderedDict(), tuple(weakref.ref(_owner(c), drop) for c in constants.values())
        steps, key = self.steps[places][0], (problem, isa.active())
        step = steps.pop(key, None)  # removed and inserted again: the first entry is the least recently used
        if step is None:
            step = self.make(problem, constants, 1)
        steps[key] = step
        if len(steps) > (_PACKED_LIMIT if constants else _LIMIT):
            steps.popitem(last=False)
        return step


def linear_rank(problem: Problem) -> str | None:
    """Why a linear step does not take x: steps store tensors of four axes channels-last. None if it does."""
    return "x has 4 axes; expected another number, or a reshape in front" if problem.inputs[0].ndim == 4 else None


def long_steps(problem: Problem) -> str | None:
    """Why native code does not take strides or dilations that are valid but too large. None if it does."""
    attrs = problem.attrs
    longest = max((*attrs.get("stride", (1,)), *attrs.get("dilation", (1,))))
    return f"a step of {longest} is left to the reference" if longest >= 1 << 24 else None


def step_kernel(
    name: str,
    make: MakeStep,
    usable: Usable,
    *,
    packs: tuple[int, ...] = (),
    accepts: Accepts = accept_all,
    inplace_input: int | None = None,
) -> StepKernel:
    """A kernel that runs one native step in plans and in eager calls."""
    run = eager(make, packs, inplace_input=inplace_input)
    return StepKernel(name, make, usable, run, packs, accepts, inplace_input)


def eager(make: MakeStep, packs: tuple[int, ...] = (), *, inplace_input: int | None = None) -> Run:
    """`run(problem, *arrays)` of a step; `packs` are the inputs that it packs."""
    cache = StepCache(make)

    def run(problem: Problem, *arrays: np.ndarray) -> np.ndarray:
        fixed = {i: arrays[i] for i in packs if i < len(arrays)}
        step = cache.get(problem, fixed)
        out = empty_for_step(problem.outputs[0])
        moving = []
        for i, a in enumerate(arrays):
            if i in fixed:
                continue
            if i == inplace_input:
                np.copyto(out.view(a.dtype) if out.dtype != a.dtype else out, to_step(a))
                moving.append(out)
            else:
                moving.append(to_step(a))
        if out.size:
            _core.run_step(step, [*map(memory.bits, moving), memory.bits(out)])
        return from_step(out)

    return run


def in_memory_order(make: MakeStep) -> Run:
    """`run(problem, array)` of an elementwise step, which keeps the order of the numbers in memory."""
    cache = StepCache(make)

    def run(problem: Problem, array: np.ndarray) -> np.ndarray:
        channels_last = array.ndim == 4 and array.transpose(0, 2, 3, 1).flags.c_contiguous
        source = array.transpose(0, 2, 3, 1) if channels_last else _c_contiguous(array)
        out = memory.empty(source.shape, source.dtype)
        if out.size:
            _core.run_step(cache.get(problem, {}), [source, out])
        return out.transpose(0, 3, 1, 2) if channels_last else out

    return run


def flat_kernel(name: str, make: MakeFlat, usable: Usable) -> FlatKernel:
    """A kernel of small eager calls, with a `run` that does the same from Python."""
    cache = StepCache(lambda problem, constants, threads: make(problem))

    def run(problem: Problem, *arrays: np.ndarray) -> Any:
        outs = tuple(np.empty(spec.shape, storage_of(spec.dtype)) for spec in problem.outputs)
        _core.run_step(cache.get(problem, {}), [memory.bits(_c_contiguous(a)) for a in (*arrays, *outs)])
        return outs[0] if len(outs) == 1 else outs

    return FlatKernel(name, make, usable, run)


def _c_contiguous(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, order="C")  # keeps arrays without axes as they are
