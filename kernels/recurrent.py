"""Recurrent layers: one native step for a whole sequence, the bits of the reference at every instruction set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, bfloat16, storage_of
from megengine.kernels import _core, isa, memory
from megengine.kernels.int8 import clamp_list, tensor_list
from megengine.kernels.kernel import EagerKernel, StepKernel
from megengine.kernels.native import StepCache
from megengine.kernels.problem import Problem, no_elements

_F32 = np.dtype(np.float32)


def _float_usable(problem: Problem) -> str | None:
    wrong = sorted({str(s.dtype) for s in problem.outputs if s.dtype != _F32})
    if wrong:
        return f"float32 only, got {', '.join(wrong)}"
    state = problem.attrs.get("state")
    if state is not None and state.itemsize != 1:
        return "a state of 16 bits"
    return "no elements" if any(s.size == 0 for s in problem.inputs) else None


def _in_rows(problem: Problem) -> str | None:
    """Plans ask for a lifted problem where values lie in rows, as the step takes them."""
    return "the results of 4 axes lie channels-last" if problem.outputs[0].ndim == 4 else _float_usable(problem)


def _halves_in_rows(problem: Problem) -> str | None:
    values = [s for s in (*problem.inputs, *problem.outputs) if s.dtype.kind != "i"]  # all but the lengths
    if wrong := sorted({str(s.dtype) for s in values if s.dtype != bfloat16}):
        return f"bfloat16 only, got {', '.join(wrong)}"
    if problem.attrs.get("state") is not None:
        return "the state is rounded to integers"
    if not isa.has("amx"):
        return f"needs AMX, active is {isa.active()}"
    if problem.outputs[0].ndim == 4:
        return "the results of 4 axes lie channels-last"
    return no_elements(problem)


def _constant_weights(problem: Problem, constants: dict[int, np.ndarray]) -> str | None:
    return None if {1, 2} <= constants.keys() else "the weights are computed"


def _layer(problem: Problem) -> Any:
    a = problem.attrs
    given = [name in a.given for name in ("bias", "lengths", "h", "c", "peepholes")]
    functions = [list(a.activations), list(a.alphas), list(a.betas)]
    options = [a.clip, a.linear_before_reset, a.input_forget]
    return _core.RecurrentLayer(a.cell, given, a.direction == "reverse", *functions, *options)


def _state(dtype: QuantizedDType) -> tuple[float, int, int, int, bool]:
    lo, hi, zero, _ = clamp_list(dtype)
    return dtype.only_scale, lo, hi, zero, bool(tensor_list(dtype)[1])


def _sizes_and_weights(problem: Problem, constants: dict[int, np.ndarray]) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Time, batch, input and hidden; the weights, with three axes."""
    w, r = (np.ascontiguousarray(constants[i]).reshape(problem.inputs[i].shape[-3:]) for i in (1, 2))
    return [*problem.inputs[0].shape[-3:], r.shape[-1]], w, r


def _make(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    lengths, w, r = _sizes_and_weights(problem, constants)
    state = problem.attrs.get("state")
    return _core.recurrent_step(_layer(problem), lengths, w, r, None if state is None else _state(state), threads)


def _make_halves(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    """The products of the inputs in bfloat16, what follows in float32; results are rounded once."""
    lengths, w, r = _sizes_and_weights(problem, constants)
    return _core.halves_recurrent_step(_layer(problem), lengths, memory.bits(w), r.astype(_F32), threads)


_steps = StepCache(_make)


def _run(problem: Problem, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    step = _steps.get(problem, {1: arrays[1], 2: arrays[2]})
    return _run_step(problem, step, arrays)


def _run_step(problem: Problem, step: Any, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    outs = tuple(memory.empty(spec.shape, storage_of(spec.dtype)) for spec in problem.outputs)
    moving = (np.asarray(a, order="C") for i, a in enumerate(arrays) if i not in (1, 2))
    _core.run_step(step, [*map(memory.bits, moving), *map(memory.bits, outs)])
    return outs


def _make_integer(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    r = np.ascontiguousarray(constants[1]).view(np.int8)
    t, n, width = problem.inputs[0].shape[-3:]
    directions = 2 if problem.attrs.direction == "bidirectional" else 1
    m, lengths = np.ascontiguousarray(constants[2]), [t, n, width, r.shape[1]]
    return _core.integer_recurrent_step(
        _layer(problem), lengths, directions, r, m, _state(problem.attrs.dtype), threads
    )


_integer_steps = StepCache(_make_integer)


def _run_integer(problem: Problem, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return _run_step(problem, _integer_steps.get(problem, {1: arrays[1], 2: arrays[2]}), arrays)


def _integer_usable(problem: Problem) -> str | None:
    return "no elements" if any(s.size == 0 for s in problem.inputs) else None


def _integer_in_rows(problem: Problem) -> str | None:
    return "the results of 4 axes lie channels-last" if problem.outputs[0].ndim == 4 else _integer_usable(problem)


own_recurrent = EagerKernel("own_recurrent", _run, _float_usable)
own_recurrent_rows = StepKernel("own_recurrent_rows", _make, _in_rows, packs=(1, 2), accepts=_constant_weights)
own_recurrent_halves = StepKernel(
    "own_recurrent_halves", _make_halves, _halves_in_rows, packs=(1, 2), accepts=_constant_weights
)
int8_recurrent = EagerKernel("int8_recurrent", _run_integer, _integer_usable)
int8_recurrent_rows = StepKernel(
    "int8_recurrent_rows", _make_integer, _integer_in_rows, packs=(1, 2), accepts=_constant_weights
)
