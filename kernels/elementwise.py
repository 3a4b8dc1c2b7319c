"""Programs of elementwise operations over broadcast operands, in one pass over memory; a single op is one of them.

Every operation is one of IEEE or integer arithmetic, or an own function, so results are those of the references.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.kernels import _core, isa, memory
from megengine.kernels.kernel import EagerKernel, StepKernel
from megengine.kernels.problem import Problem, no_elements
from megengine.kernels.strided import planned_strides

# (op, its attributes as pairs, which values it takes: those of the inputs are numbered first, then the results)
Instruction = tuple[str, tuple[tuple[str, Any], ...], tuple[int, ...]]

MOST_INPUTS, MOST_INSTRUCTIONS = 31, 32  # of one program
_LOGICAL = ("logical_and", "logical_or", "logical_xor", "logical_not")
_TRUTHS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", *_LOGICAL)
_DIVISIONS = ("floor_div", "mod", "trunc_div")


def program_of(problem: Problem) -> tuple[Instruction, ...]:
    """The program that a problem is."""
    if problem.op == "elementwise":
        return problem.attrs.program
    return ((problem.op, tuple(problem.attrs.items()), tuple(range(len(problem.inputs)))),)


def _rows(program: tuple[Instruction, ...], inputs: tuple[TensorSpec, ...]) -> list[tuple] | str:
    """The instructions as native code takes them, or why it cannot."""
    types, rows = [str(storage_of(s.dtype)) for s in inputs], []
    for op, items, sources in program:
        attrs, of = dict(items), types[sources[-1]]
        to = str(attrs["dtype"]) if op == "cast" else "bool" if op in _TRUTHS else of
        if not _core.has_elementwise(op, of, to):
            return f"{op} of {of}" + f" to {to}" * (op == "cast")
        low, high = attrs.get("lo", attrs.get("slope", 0.0)), attrs.get("hi", 0.0)
        if of[0] in "iu" and not math.isfinite(low + high):
            return f"{op} of {of} without bounds"
        types.append(to)
        rows.append((op, of, to, low, high, sources))
    return rows


def cannot_run(problem: Problem) -> str | None:
    """Why a program, or a single op, cannot run natively; None if it can."""
    return "divisors may be 0" if _divides_integers(problem) else _cannot_run(problem)


def _divides_integers(problem: Problem) -> bool:
    return problem.op in _DIVISIONS and problem.inputs[1].dtype.kind in "iu"


def _cannot_run(problem: Problem) -> str | None:
    if len(problem.inputs) > MOST_INPUTS:
        return counted(len(problem.inputs), "input")
    rows = _rows(program_of(problem), problem.inputs)
    return rows if isinstance(rows, str) else no_elements(problem)


def _step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    rows, out = _rows(program_of(problem), problem.inputs), problem.outputs[0]
    strides = [list(planned_strides(spec, out.shape)) for spec in (out, *problem.inputs)]
    types = [str(storage_of(s.dtype)) for s in problem.inputs]
    divisors = problem.inputs[1].size if _divides_integers(problem) else 0
    return _core.elementwise_step(list(out.shape), strides, types, rows, threads, divisors)


# ---------------------------------------------------------------- eager calls

_CHANNELS_LAST = (0, 2, 3, 1)
CALLED = {"pow": 1, "atan2": 1, "where": 16384, "mod": 4096, "floor_div": 4096}
"""Ops that NumPy has in many passes, and the elements from which an eager step is faster."""


@lru_cache(512)
def _step_of_call(problem: Problem, shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], level: Any) -> Any:
    """The step of a call for an instruction set, which is that of the process when the step is made."""
    types = [str(storage_of(s.dtype)) for s in problem.inputs]
    rows = _rows(program_of(problem), problem.inputs)
    return _core.elementwise_step(list(shape), [list(s) for s in strides], types, rows, 1, 0)


def _few_elements(problem: Problem) -> str | None:
    least = CALLED[problem.op]
    return f"fewer than {counted(least, 'element')}" if problem.outputs[0].size < least else None


def _call(problem: Problem, *arrays: np.ndarray) -> np.ndarray:
    """The result of an op; channels-last where all operands of its shape are."""
    out = problem.outputs[0]
    full = [a for a in arrays if a.shape == out.shape]
    last = out.ndim == 4 and full and all(a.transpose(_CHANNELS_LAST).flags.c_contiguous for a in full)
    order = _CHANNELS_LAST if last else tuple(range(out.ndim))
    shape = tuple(out.shape[axis] for axis in order)
    wide = [a.reshape((1,) * (out.ndim - a.ndim) + a.shape).transpose(order) for a in arrays]
    operands = [np.asarray(a, order="C") for a in wide]
    result = memory.empty(shape, storage_of(out.dtype))
    strides = (result.strides, *(np.broadcast_to(a, shape).strides for a in operands))
    step = _step_of_call(problem, shape, strides, isa.active())
    _core.run_step(step, [memory.bits(a) for a in (*operands, result)])
    return result.transpose(0, 3, 1, 2) if last else result


OPS = (
    "elementwise",
    *_TRUTHS,
    *("maximum", "minimum", "where", "cast"),
    *("clip", "neg", "abs", "square", "sign", "floor", "ceil", "round", "round_even", "sqrt", "rsqrt", "pow"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "atan2"),
)  # that have no other kernel


def _half_table_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    return _core.half_table_step(problem.inputs[0].size, problem.outputs[0].dtype == np.float32, threads)


own_elementwise = StepKernel("own_elementwise", _step, cannot_run)
own_half_table = StepKernel("own_half_table", _half_table_step)
own_elementwise_call = EagerKernel(
    "own_elementwise_call", _call, lambda problem: cannot_run(problem) or _few_elements(problem)
)
own_integer_division = StepKernel(
    "own_integer_division",
    _step,
    lambda problem: _cannot_run(problem) if _divides_integers(problem) else "floats",
    refuses=True,
)
