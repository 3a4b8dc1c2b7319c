"""The three kinds of kernels in `lists.py`: functions of arrays, steps of small calls, steps of plans.

Every kernel has a name; `usable(problem)`, which returns None or the reason against it; and `run(problem, *arrays)` for
eager calls, which is None for kernels of plans only.
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

    `make_flat(problem)` returns the step. It packs nothing and takes C-contiguous arrays; `apply` runs it without
    Python, and `run` does the same from Python (`native.flat_kernel` makes both).
    """

    name: str
    make_flat: MakeFlat
    usable: Usable
    run: Run


@dataclass(frozen=True, slots=True)
class StepKernel:
    """A native step for plans, where 4-D activations are dense channels-last.

    `make_step(problem, constants, threads)` returns the step. It takes the inputs `packs` from the constants when it is
    made; other constants are buffers, like any input. `accepts(problem, constants)` is a second `usable` that sees the
    values of the constants. `inplace_input` is the input whose memory the output must share (a residual that is summed
    in place). `run` is the eager form, if any; `native.step_kernel` makes it from the step. A `free` kernel adds in an
    order of its own, so its results differ from the reference's in the last bits; plans with integers leave it out,
    because a later value could round differently. A kernel `in_rows` reads and writes values with four axes in rows, as
    NumPy has them. The step of a kernel that `refuses` may refuse inputs; then the reference raises.
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
