"""Ordered kernel lists: one per op, best first; the op's NumPy reference stands behind the last entry.

The first usable kernel wins, so a choice never depends on timing. `MEGENGINE_FORCE_KERNEL=name[,name]` forces kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.errors import OptionError, nearest
from megengine.core.spec import TensorSpec
from megengine.kernels import isa


class Attrs(Mapping[str, Any]):
    """Attributes of a problem: frozen, hashable, readable as items and as Python attributes."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_items", dict(items))
        object.__setattr__(self, "_hash", hash(tuple(sorted(self._items.items(), key=lambda kv: kv[0]))))

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._items[name]
        except KeyError:
            raise AttributeError(f"no attribute {name!r}; there are {sorted(self._items)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("attributes of a problem are frozen")

    def __iter__(self):
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attrs) and self._items == other._items

    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True, slots=True, init=False)
class Problem:
    """What a kernel is asked to compute: the op, specs of inputs and outputs, attributes."""

    op: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Attrs
    _hash: int = field(compare=False, repr=False)  # asked for by every eager call of a step

    def __init__(
        self, op: str, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec], attrs: Mapping[str, Any]
    ) -> None:
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "inputs", tuple(inputs))
        object.__setattr__(self, "outputs", tuple(outputs))
        object.__setattr__(self, "attrs", attrs if isinstance(attrs, Attrs) else Attrs(attrs))
        object.__setattr__(self, "_hash", hash((op, self.inputs, self.outputs, self.attrs)))

    def __hash__(self) -> int:
        return self._hash


Usable = Callable[[Problem], str | None]
Run = Callable[..., Any]
MakeStep = Callable[[Problem, dict[int, np.ndarray], int], Any]
Accepts = Callable[[Problem, dict[int, np.ndarray]], str | None]


def accept_all(problem: Problem, constants: dict[int, np.ndarray]) -> None:
    """The usual `accepts`: values of constants do not matter."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry of a list.

    `usable(problem)` is None or the reason why not. `run(problem, *arrays)` serves eager calls; `make_step(problem,
    constants, threads)` gives a native step for plans (4-D activations dense channels-last). `accepts(problem,
    constants)` is asked like `usable`, with the values of the constants. `inplace_input` is the input whose memory
    the step's output must share (a residual that is summed in place). `packs`: inputs that the step takes
    from the constants when it is made; constants elsewhere are given as buffers, like any input.
    `make_flat(problem)` gives a native step for eager calls of small tensors, where Python would take longer than the
    work: it packs nothing and takes every array C-contiguous. `run` does the same from Python.
    `reshapes`: the result has the elements of the only input in their order; eager calls make a view, natively.
    `exact`: equals the integer specification bit for bit. `reproducible`: the same result on every run and
    thread count.
    """

    name: str
    isa: str = "base"
    usable: Usable = lambda problem: None
    run: Run | None = None
    make_step: MakeStep | None = None
    make_flat: Callable[[Problem], Any] | None = None
    reshapes: bool = False
    accepts: Accepts = accept_all
    inplace_input: int | None = None
    packs: tuple[int, ...] = ()
    exact: bool = True
    reproducible: bool = True


_MEMO_LIMIT = 1024  # problems of one op whose choice is remembered; shapes may change for ever


class Family:
    """The kernels of one op, best first."""

    def __init__(self, op: str) -> None:
        self.op = op
        self._kernels: list[Kernel] = []
        self._memo: dict[tuple[Problem, bool], tuple[Kernel, ...]] = {}

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, best first."""
        return tuple(self._kernels)

    def add(self, kernel: Kernel, *, before: str | None = None) -> Kernel:
        """Append a kernel, or put it before the one named."""
        names = [k.name for k in self._kernels]
        if kernel.name in names:
            raise OptionError(f"{self.op}: a kernel {kernel.name!r} is already listed")
        if before is not None and before not in names:
            raise OptionError(f"{self.op}: no kernel {before!r} to stand before{nearest(before, names)}")
        self._kernels.insert(len(names) if before is None else names.index(before), kernel)
        _changed()
        return kernel

    def remove(self, name: str) -> None:
        """Take a kernel off the list: for tests that plant one."""
        self._kernels = [k for k in self._kernels if k.name != name]
        _changed()

    def reason(self, kernel: Kernel, problem: Problem, *, step: bool = False) -> str | None:
        """Why the kernel is not chosen for the problem, or None if it is usable."""
        if not isa.has(kernel.isa):
            return f"needs {kernel.isa}, active is {isa.active()}"
        if (kernel.make_step if step else kernel.run) is None:
            return "has no plan step" if step else "has no eager form"
        if any(not s.device.startswith("cpu") for s in problem.inputs) != kernel.name.startswith("cuda"):
            return f"other device than {problem.inputs[0].device}"
        return kernel.usable(problem)

    def candidates(self, problem: Problem, *, step: bool = False) -> tuple[Kernel, ...]:
        """Usable kernels, best first (forced ones before the others); the reference is not among them."""
        key = (problem, step)
        if key not in self._memo:
            if len(self._memo) >= _MEMO_LIMIT:
                self._memo.clear()
            usable = [k for k in self._kernels if self.reason(k, problem, step=step) is None]
            preferred = forced()
            usable.sort(key=lambda k: k.name not in preferred)  # stable: the order of the list is kept
            self._memo[key] = () if "reference" in preferred else tuple(usable)
        return self._memo[key]

    def select(self, problem: Problem, constants: dict[int, np.ndarray], *, step: bool = False) -> Kernel | None:
        """The first kernel that is usable and accepts the constants, or None when only the reference is left."""
        found = self.candidates(problem, step=step)
        return next((k for k in found if k.accepts(problem, constants) is None), None)

    def for_plan(self, problem: Problem, constants: dict[int, np.ndarray]) -> tuple[Kernel, ...]:
        """Kernels whose step can be made, best first: every input that they pack is a constant that they accept."""
        moving = {i for i in range(len(problem.inputs)) if i not in constants}
        found = [k for k in self.candidates(problem, step=True) if not moving & set(k.packs)]
        return tuple(k for k in found if k.accepts(problem, constants) is None)

    def explain(self, problem: Problem, *, step: bool = False) -> list[tuple[str, str]]:
        """Every kernel with "usable" or the reason why not, the reference last."""
        rows = [(k.name, self.reason(k, problem, step=step) or "usable") for k in self._kernels]
        return [*rows, ("reference", "usable")]

    def forget(self) -> None:
        """Drop memoised choices."""
        self._memo.clear()


_families: dict[str, Family] = {}
_listeners: list[Callable[[], None]] = []


def family(op: str) -> Family:
    """The list of an op, made when first asked for."""
    if op not in _families:
        _families[op] = Family(op)
    return _families[op]


def families() -> dict[str, Family]:
    """Every list made so far, by op."""
    return dict(_families)


def on_change(listener: Callable[[], None]) -> None:
    """Call `listener` whenever choices may change (a kernel added, the cap moved)."""
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
