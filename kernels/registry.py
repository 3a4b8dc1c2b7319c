"""The choice of a kernel: the first usable one of an op's list; the op's NumPy reference comes after the last entry.

A choice never depends on timing. `MEGENGINE_FORCE_KERNEL=name[,name]` forces kernels.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.kernels import isa
from megengine.kernels.cuda.lists import cuda_lists
from megengine.kernels.kernel import Kernel, StepKernel, accept_all
from megengine.kernels.lists import LISTS
from megengine.kernels.problem import Problem

_EIGHT_BITS = ("int8_", "onednn_q")  # in the names of kernels
_MEMO_LIMIT = 1024  # problems of one op whose choice is remembered; shapes may change for ever


class Family:
    """The kernels of one op, best first."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.host: tuple[Kernel, ...] = LISTS.get(op, ())
        self._memo: dict[tuple[Problem, bool], tuple[Kernel, ...]] = {}

    @functools.cached_property
    def cuda(self) -> tuple[Kernel, ...]:
        """The kernels of GPUs; their modules are imported when one of them is first asked for."""
        return cuda_lists().get(self.op, ())

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of all devices."""
        return (*self.host, *self.cuda)

    def _of(self, problem: Problem) -> tuple[Kernel, ...]:
        return self.cuda if problem.on_gpu else self.host

    @contextmanager
    def planted(self, kernel: Kernel) -> Iterator[None]:
        """Put a kernel in front of all others of its device while the body runs: for tests."""
        device = "cuda" if _is_cuda(kernel) else "host"
        setattr(self, device, (kernel, *getattr(self, device)))
        _changed()
        try:
            yield
        finally:
            setattr(self, device, tuple(k for k in getattr(self, device) if k is not kernel))
            _changed()

    def reason(self, kernel: Kernel, problem: Problem, *, step: bool = False) -> str | None:
        """Why the kernel is not chosen for the problem, or None if it is usable."""
        if step and not isinstance(kernel, StepKernel):
            return "has no plan step"
        if not step and kernel.run is None:
            return "has no eager form"
        if problem.on_gpu != _is_cuda(kernel):
            return f"other device than {problem.device}"
        return _too_wide(kernel, problem) or kernel.usable(problem)

    def candidates(self, problem: Problem, *, step: bool = False) -> tuple[Kernel, ...]:
        """Usable kernels, best first (forced ones before the others); the reference is not among them."""
        key = (problem, step)
        choice = self._memo.get(key)
        if choice is None:
            if len(self._memo) >= _MEMO_LIMIT:
                self._memo.clear()
            usable = [k for k in self._of(problem) if self.reason(k, problem, step=step) is None]
            preferred = forced()
            usable.sort(key=lambda k: k.name not in preferred)  # stable: the order of the list is kept
            choice = self._memo[key] = () if "reference" in preferred else tuple(usable)
        return choice

    def select(self, problem: Problem, constants: dict[int, np.ndarray], *, step: bool = False) -> Kernel | None:
        """The first kernel that is usable and accepts the constants, or None when only the reference is left."""
        usable = self.candidates(problem, step=step)
        return next((k for k in usable if not depends_on_values(k) or k.accepts(problem, constants) is None), None)

    def for_plan(self, problem: Problem, constants: dict[int, np.ndarray]) -> tuple[StepKernel, ...]:
        """Kernels that can make a step, best first: every input that they pack is a constant that they accept."""
        moving = {i for i in range(len(problem.inputs)) if i not in constants}
        steps = (k for k in self.candidates(problem, step=True) if isinstance(k, StepKernel))
        return tuple(k for k in steps if not moving & set(k.packs) and k.accepts(problem, constants) is None)

    def explain(self, problem: Problem, *, step: bool = False) -> list[tuple[str, str]]:
        """Every kernel of the device with "usable" or the reason why not, the reference last."""
        rows = [(k.name, self.reason(k, problem, step=step) or "usable") for k in self._of(problem)]
        return [*rows, ("reference", "usable")]

    def forget(self) -> None:
        """Drop memoised choices."""
        self._memo.clear()


def _is_cuda(kernel: Kernel) -> bool:
    return kernel.name.startswith("cuda")


def _too_wide(kernel: Kernel, problem: Problem) -> str | None:
    """Why a kernel of 8-bit integers, which has them in its name, does not take others."""
    if not any(word in kernel.name for word in _EIGHT_BITS):
        return None
    dtypes = (s.dtype for s in (*problem.inputs, *problem.outputs))
    wide = next((d for d in dtypes if isinstance(d, QuantizedDType) and d.itemsize > 1), None)
    return None if wide is None else f"{wide} has more than 8 bits"


def depends_on_values(kernel: Kernel) -> TypeGuard[StepKernel]:
    """Whether the kernel is chosen by the values of constants."""
    return isinstance(kernel, StepKernel) and kernel.accepts is not accept_all


_families: dict[str, Family] = {}
_listeners: list[Callable[[], None]] = []


def family(op: str) -> Family:
    """The kernels of an op; none where it has no list."""
    if op not in _families:
        _families[op] = Family(op)
    return _families[op]


def on_change(listener: Callable[[], None]) -> None:
    """Call `listener` whenever choices may change (a kernel planted, the cap moved)."""
    _listeners.append(listener)


def _changed() -> None:
    for one in _families.values():
        one.forget()
    for listener in _listeners:
        listener()


isa.on_change(_changed)


def forced() -> set[str]:
    """Names in MEGENGINE_FORCE_KERNEL."""
    return {n for n in os.environ.get("MEGENGINE_FORCE_KERNEL", "").split(",") if n}
