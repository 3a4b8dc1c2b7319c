"""The three kinds of kernels that `lists.py` orders: functions of arrays, steps of small calls, steps of plans.

Every kernel has a name, `usable(problem)`, which is None or the reason why not, and `run(problem, *arrays)` for eager
calls, which is None where only plans use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.kernels.problem import Problem

Usable = Callable[[Problem], str | None]
Run = Callable[..., Any]
MakeStep = Callable[[Problem, dict[int, np.ndarray], int], Any]
MakeFlat = Callable[[Problem], Any]
Accepts = Callable[[Problem, dict[int, np.ndarray]], str | None]


def always(problem: Problem) -> None:
    """The `usable` of a kernel that takes every problem of its op."""


def accept_all(problem: Problem, constants: dict[int, np.ndarray]) -> None:
    """The usual `accepts`: values of constants do not matter."""


@dataclass(frozen=True, slots=True)
class EagerKernel:
    """A function of arrays, for eager calls.

    `reshapes`: the result has the elements of the only input in their order; `apply` makes a view, natively.
    """

    name: str
    run: Run
    usable: Usable = always
    reshapes: bool = False


@dataclass(frozen=True, slots=True)
class FlatKernel:
    """A native step for eager calls of small tensors, where Python would take longer than the work.

    `make_flat(problem)` gives the step. It packs nothing and takes every array C-contiguous; `apply` runs it without
    Python, and `run` does the same from Python (`native.flat_kernel` makes both).
    """

    name: str
    make_flat: MakeFlat
    usable: Usable
    run: Run


@dataclass(frozen=True, slots=True)
class StepKernel:
    """A native step for plans, where 4-D activations are dense channels-last.

    `make_step(problem, constants, threads)` gives the step. It takes the inputs `packs` from the constants when it is
    made; constants elsewhere are given as buffers, like any input. `accepts(problem, constants)` is asked like
    `usable`, with the values of the constants. `inplace_input` is the input whose memory the output must share (a
    residual that is summed in place). `run` is the eager form, if any; `native.step_kernel` makes it from the step. A
    kernel that is `free` adds in an order of its own, so its results differ from the reference's in the last bits; no
    plan with integers takes it, as a value behind could round otherwise. One `in_rows` takes and gives values with four
    axes in rows, as NumPy has them. The step of one that `refuses` may refuse inputs; the reference raises then.
    """

    name: str
    make_step: MakeStep
    usable: Usable = always
    run: Run | None = None
    packs: tuple[int, ...] = ()
    accepts: Accepts = accept_all
    inplace_input: int | None = None
    free: bool = False
    in_rows: bool = False
    refuses: bool = False


Kernel = EagerKernel | FlatKernel | StepKernel
