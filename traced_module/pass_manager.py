"""Running passes: in order, linted, and on request compared numerically, with the guilty one named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.collecting import collection_paused
from megengine.core.errors import GraphError, OptionError, nearest
from megengine.tensor import Tensor
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.interpret import interpret
from megengine.traced_module.rewriting import Rule, rewrite


@dataclass(frozen=True, slots=True)
class Pass:
    """A named transform of a graph in place; `run` returns True if it changed something."""

    name: str
    run: Callable[[InternalGraph], bool]

    @classmethod
    def of_rules(cls, name: str, *rules: Rule) -> Pass:
        """A pass that applies rules until none fits any more."""

        def run(graph: InternalGraph) -> bool:
            changed = False
            while rewrite(graph, rules):
                changed = True
            return changed

        return cls(name, run)


_registered: dict[str, Pass] = {}


def register_pass(one: Pass) -> Pass:
    """Let `optimize` and the command know a pass by its name."""
    if one.name in _registered:
        raise OptionError(f"register_pass: {one.name!r} is registered already; choose another name")
    _registered[one.name] = one
    return one


def get_registered_pass(pass_name: str) -> Pass:
    """A registered pass; the error gives the nearest name."""
    if pass_name not in _registered:
        raise OptionError(
            f"unknown pass {pass_name!r}{nearest(pass_name, _registered)}; known: {', '.join(_registered)}"
        )
    return _registered[pass_name]


def registered_passes() -> tuple[Pass, ...]:
    """All registered passes, in the order in which they were registered."""
    return tuple(_registered.values())


@dataclass
class PassManager:
    """Runs passes in order and lints after each.

    Args:
        passes: what to run.
        check_with: inputs of the graph; outputs are compared before and after each pass.
        tolerance: largest difference accepted, as a part of the largest output.
        reproducer: folder; when a pass is found guilty, the smallest part of the graph that it changes wrongly is
            written there: before.mgt, after.mgt and inputs.npz.

    Example:
        >>> PassManager([fold], check_with=[x]).run(graph)  # doctest: +SKIP
    """

    passes: Sequence[Pass]
    check_with: Sequence[Any] | None = None
    tolerance: float = 1e-4
    reproducer: str | Path | None = None
    changed: list[str] = field(default_factory=list)

    def run(self, graph: InternalGraph) -> list[str]:
        """Run all passes, each one step for `undo`; returns the names of those that changed the graph.

        Raises:
            GraphError: a pass changed what the graph computes; it is named, and so is the first value that differs.
                The graph is left as that pass made it.
        """
        with collection_paused():
            return self._run(graph)

    def _run(self, graph: InternalGraph) -> list[str]:
        self.changed = []
        expected = None if self.check_with is None else interpret(graph, self.check_with)
        for one in self.passes:
            before = graph.clone() if expected is not None else None
            with graph.transaction(one.name):
                changed = one.run(graph)
            if changed:
                self.changed.append(one.name)
            graph.lint()
            if before is not None:
                self._compare(one, before, graph, expected)
        return self.changed

    def _compare(self, one: Pass, before: InternalGraph, after: InternalGraph, expected: Any) -> None:
        worst = max(map(_difference, expected, interpret(after, self.check_with or ())), default=0.0)
        if worst <= self.tolerance:
            return
        first = self._first_difference(before, after)
        where = "" if first is None else f"; the first value that differs is {first!r}"
        if first is not None and self.reproducer is not None:
            write_reproducer(Path(self.reproducer), before, after, first, self.check_with or ())
            where += f"; reproducer in {self.reproducer}"
        raise GraphError(
            f"pass {one.name!r} changes the result by {worst:.3g} of its range; expected {self.tolerance}{where}"
        )

    def _first_difference(self, before: InternalGraph, after: InternalGraph) -> str | None:
        """The earliest value of the graph before the pass that has another value under the same name behind it."""
        was, now = (values_of(g, self.check_with or ()) for g in (before, after))
        for name, value in was.items():
            if name in now and (now[name].shape != value.shape or _difference(value, now[name]) > self.tolerance):
                return name
        return None


def values_of(graph: InternalGraph, inputs: Sequence[Any]) -> dict[str, Tensor]:
    """Every value of a run, by the name of its node."""
    values: dict[str, Tensor] = {}

    def keep(node: Any, value: Tensor) -> None:
        values.setdefault(node.name, value)

    interpret(graph, inputs, on_value=keep)
    return values


def _difference(want: Tensor, got: Tensor) -> float:
    a, b = (np.asarray(t.numpy(), np.float64) for t in (want, got))
    scale = float(np.abs(a).max(initial=0)) or 1.0
    worst = float(np.abs(a - b).max(initial=0)) / scale
    return worst if worst == worst else float("inf")


def write_reproducer(
    folder: Path, before: InternalGraph, after: InternalGraph, name: str, inputs: Iterable[Any]
) -> None:
    """The part of both graphs between the values on which they agree and the first on which they do not (op level)."""
    from megengine.traced_module import files
    from megengine.traced_module.traced import lower

    small, ends = [], []
    shared = {n.name for n in before.nodes()} & {n.name for n in after.nodes()} - {name}
    for graph in (before, after):
        part, cut = _cut(graph, name, shared)
        small.append(part)
        ends.append(cut)
    folder.mkdir(parents=True, exist_ok=True)
    values = values_of(before, list(inputs))
    np.savez(folder / "inputs.npz", **{n: values[n].numpy() for n in {*ends[0], *ends[1]} if n in values})
    for part, title in zip(small, ("before", "after"), strict=True):
        files.save(lower(part), folder / f"{title}.mgt")


def _cut(graph: InternalGraph, name: str, shared: set[str]) -> tuple[InternalGraph, list[str]]:
    """A copy that computes one value from the nearest values whose names are in `shared`; these become inputs."""
    part = graph.clone()
    node = part.node(name)
    kept = {id(node.expr)}
    todo, ends = list(node.expr.inputs), []
    while todo:
        at = todo.pop()
        if at.expr.kind in ("Constant", "Input", "GetAttr"):
            continue
        if at.name in shared:
            if at.name not in ends:
                ends.append(at.name)
            continue
        if id(at.expr) not in kept:
            kept.add(id(at.expr))
            todo.extend(at.expr.inputs)
    part.set_outputs([node])
    part.out_def = None
    for end in ends:
        old = part.node(end)
        fresh = part.add_input(f"{end}_value", old.spec)
        part.replace_node({old: fresh})
    part.remove_dead()
    return part, ends
