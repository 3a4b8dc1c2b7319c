"""Recurrent layers: one native step for a whole sequence, the bits of the reference at every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.kernels import _core, memory
from megengine.kernels.kernel import EagerKernel, StepKernel
from megengine.kernels.native import StepCache
from megengine.kernels.problem import Problem

_F32 = np.dtype(np.float32)


def _float_usable(problem: Problem) -> str | None:
    wrong = sorted({str(s.dtype) for s in problem.outputs if s.dtype != _F32})
    if wrong:
        return f"float32 only, got {', '.join(wrong)}"
    return "no elements" if any(s.size == 0 for s in problem.inputs) else None


def _in_rows(problem: Problem) -> str | None:
    """Plans ask for a lifted problem where values lie in rows, as the step takes them."""
    return "the results of 4 axes lie channels-last" if problem.outputs[0].ndim == 4 else _float_usable(problem)


def _constant_weights(problem: Problem, constants: dict[int, np.ndarray]) -> str | None:
    return None if {1, 2} <= constants.keys() else "the weights are computed"


def _make(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    a = problem.attrs
    w, r = (np.ascontiguousarray(constants[i]).reshape(problem.inputs[i].shape[-3:]) for i in (1, 2))
    lengths = [*problem.inputs[0].shape[-3:], problem.inputs[2].shape[-1]]
    given = [name in a.given for name in ("bias", "lengths", "h", "c", "peepholes")]
    functions = [list(a.activations), list(a.alphas), list(a.betas)]
    options = [a.clip, a.linear_before_reset, a.input_forget]
    return _core.recurrent_step(a.cell, lengths, w, r, given, a.direction == "reverse", *functions, *options, threads)


_steps = StepCache(_make)


def _run(problem: Problem, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    step = _steps.get(problem, {1: arrays[1], 2: arrays[2]})
    outs = tuple(memory.empty(spec.shape, np.float32) for spec in problem.outputs)
    moving = (np.asarray(a, order="C") for i, a in enumerate(arrays) if i not in (1, 2))
    _core.run_step(step, [*moving, *outs])
    return outs


own_recurrent = EagerKernel("own_recurrent", _run, _float_usable)
own_recurrent_rows = StepKernel("own_recurrent_rows", _make, _in_rows, packs=(1, 2), accepts=_constant_weights)
