"""What can differ between two graphs, as values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

# kind -> what is wrong, and how much a story that needs it is worth avoiding (see `diff_matching`)
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
        where: path of the module in which it is; "" for the outermost one.
        old, new: its name in the first and the second graph; None where it is missing.
        what: which part of it: the name of an argument, "values", "shape", ...; "" for the whole; "folded" for a layer
            that does what several calls did, or the other way round.
        before, after: that part in the first and the second, as text.
        distance: largest absolute difference of two tensors' values; None for what is not values.
        relative: the same as a part of the largest absolute value of both.
        norm: Euclidean norm of the difference of two tensors' values.
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
        """Its name in the second graph; in the first where it has none there."""
        return self.new if self.new is not None else self.old or ""

    @property
    def path(self) -> str:
        """Module path and name."""
        return f"{self.where}.{self.name}" if self.where else self.name

    def reversed(self) -> Change:
        """The same difference, seen from the other side."""
        return replace(
            self,
            kind=_OPPOSITE.get(self.kind, self.kind),
            old=self.new,
            new=self.old,
            before=self.after,
            after=self.before,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; fields that say nothing are left out."""
        found = {name: getattr(self, name) for name in self.__slots__}
        kept = {name: value for name, value in found.items() if value not in (None, "", ())}
        infinite = {name for name in ("distance", "relative", "norm") if name in kept and not _is_finite(kept[name])}
        plain = {name: str(value) if name in infinite else value for name, value in kept.items()}
        return {**plain, "parts": list(self.parts)} if self.parts else plain


def _is_finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


class Bare(str):
    """Text that is written without quotes, as names of nodes among arguments are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def short(text: str) -> str:
    """Text of a value, cut to what is shown."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def sentence(change: Change) -> str:
    """A change in a few words, without its module."""
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
    return f"by at most {change.distance:.6g} ({_percent(change)} of the largest), norm {change.norm:.6g}"


def _percent(change: Change) -> str:
    return "more than all" if change.relative is None else f"{100 * change.relative:.3g} %"
