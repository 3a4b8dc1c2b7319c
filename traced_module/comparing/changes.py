"""What can differ between two graphs, as values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

# kind -> its cost when matchings of two graphs are compared (`matching.best_matching`)
KINDS = {
    "added": 3.0,  # only in the second
    "removed": 3.0,  # only in the first
    "changed": 2.0,  # other arguments, attributes, values
    "rewired": 2.0,  # other operands
    "renamed": 1.0,  # another name, nothing else
    "moved": 1.0,  # another place in the order of execution
    "result": 0.0,  # another shape or dtype, as follows from a change before it
}
LONGEST = 200  # characters of a value that are shown
_OPPOSITE = {"added": "removed", "removed": "added"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference.

    Attributes:
        kind: "added", "removed", "changed", "rewired" (other operands), "renamed", "moved" (in the order of
            execution) or "result" (a shape or dtype that follows from other changes).
        element: "expr", "output" (of the graph), "graph", "module" or "parameter" (a tensor of a module).
        where: path of the module that holds it; "" for the outermost one.
        old, new: its name in the first and the second graph; None where it is missing.
        what: the part that differs: the name of an argument, "values", "shape", ...; "" for the whole; "folded" for a
            layer that does what several calls did, or the other way round.
        before, after: that part in the first and the second graph, as text.
        distance: largest absolute difference between the values of two tensors; None if no values are compared.
        relative: `distance` divided by the largest absolute value of both tensors.
        norm: Euclidean norm of the difference between the values of two tensors.
        parts: of what is "folded", names of the calls that are part of the layer on the other side.
    """

    kind: str
    element: str = "expr"
    where: str = ""
    old: str | None = None
    new: str | None = None
    what: str = ""
    before: str | None = None
    after: str | None = None
    distance: float | None = None
    relative: float | None = None
    norm: float | None = None
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name in the second graph; if it is missing there, in the first."""
        return self.new if self.new is not None else self.old or ""

    @property
    def path(self) -> str:
        return joined(self.where, self.name)

    def reversed(self) -> Change:
        """The same difference with the two graphs exchanged."""
        kind = _OPPOSITE.get(self.kind, self.kind)
        return replace(self, kind=kind, old=self.new, new=self.old, before=self.after, after=self.before)

    def to_json(self) -> dict[str, Any]:
        """Plain values; empty fields are left out."""
        described = {name: getattr(self, name) for name in self.__slots__}
        kept = {name: value for name, value in described.items() if value not in (None, "", ())}
        infinite = {k: str(v) for k, v in kept.items() if isinstance(v, float) and not math.isfinite(v)}
        return {**kept, **infinite, **({"parts": list(self.parts)} if self.parts else {})}


def joined(path: str, name: str) -> str:
    """The path of what is called `name` in the module at `path`."""
    return f"{path}.{name}" if path else name


class Bare(str):
    """Text whose repr has no quotes: names of nodes among arguments."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def short(text: str) -> str:
    """Text of a value, cut to `LONGEST` characters."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def sentence(change: Change) -> str:
    """A change as one line, without its module."""
    element = "" if change.element == "expr" else f"{change.element} "
    subject = f"{element}{change.name}".strip() or "graph"
    if change.kind == "renamed":
        return f"{element}{change.old} is now called {change.new}"
    if change.kind in ("added", "removed"):
        text = change.after if change.kind == "added" else change.before
        return subject if not text else f"{subject} = {text}" if change.element == "expr" else f"{subject}: {text}"
    if change.what == "folded":
        return f"{subject}: {change.before} -> {change.after}; weights differ {_by(change)}"
    if change.distance is not None:
        return f"{subject}: {change.after} differ, {_by(change)}"
    what = f" {change.what}:" if change.what else ":" if change.kind != "moved" else " moved:"
    return f"{subject}{what} {change.before} -> {change.after}"


def _by(change: Change) -> str:
    percent = "more than all" if change.relative is None else f"{100 * change.relative:.3g} %"
    return f"by at most {change.distance:.6g} ({percent} of the largest), norm {change.norm:.6g}"
