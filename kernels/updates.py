"""Native twins of the optimizers' update rules: the same bits as NumPy's, in one pass over the memory.

`twin` attaches the native rule to a rule written in NumPy, so a subclass with a rule of its own runs that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from megengine.kernels import _core
from megengine.kernels.registry import forced

RULES = ("sgd", "momentum", "nesterov", "adam", "moments", "adagrad", "adadelta")  # in the order of the native list
_F32 = np.dtype(np.float32)
_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class NativeUpdate:
    """A native rule by name, the arrays of the state that it updates, and its scalars (csrc/updates/kernels.h)."""

    rule: str
    states: tuple[str, ...]
    scalars: tuple[float, ...]


def twin(describe: Callable[..., NativeUpdate]) -> Callable[[_Method], _Method]:
    """Give a NumPy rule `f(self, w, g, state, group)` its native twin: `describe(self, state, group)` says which."""

    def attach(rule: _Method) -> _Method:
        rule.native = describe  # type: ignore[attr-defined]  # functions take attributes
        return rule

    return attach


def twin_of(rule: Callable[..., Any]) -> Callable[..., NativeUpdate] | None:
    """The function that describes the native twin of a rule; None if there is none or NumPy is forced."""
    return None if "reference" in forced() else getattr(rule, "native", None)


def fits(w: np.ndarray, g: np.ndarray) -> bool:
    """True if the native rules take this value and gradient."""
    return w.dtype == _F32 and g.dtype == _F32


@dataclass(frozen=True, slots=True)
class Batch:
    """Parameters that one native call updates with the same scalars: four lists, an entry for each parameter."""

    update: NativeUpdate
    values: list[np.ndarray] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)
    states: list[dict[str, np.ndarray]] = field(default_factory=list)
    outs: list[np.ndarray] = field(default_factory=list)

    def add(self, out: np.ndarray, w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray]) -> None:
        """Write the new value of w to `out` (C-contiguous; it may be the memory of w), and update the state."""
        self.values.append(w if w.flags.c_contiguous else np.ascontiguousarray(w))
        self.gradients.append(g if g.flags.c_contiguous else np.ascontiguousarray(g))
        self.states.append(state)
        self.outs.append(out)

    def run(self, decay: float) -> None:
        """Update everything; decay * w is added to the gradient."""
        states = [state[name] for name in self.update.states for state in self.states]
        rule = RULES.index(self.update.rule)
        _core.update(rule, self.values, self.gradients, states, self.outs, decay, self.update.scalars)
