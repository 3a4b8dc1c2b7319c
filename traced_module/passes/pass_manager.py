"""Running passes: in order, linted, and on request compared numerically, with the guilty one named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megengine.core.collecting import collection_paused
from megengine.core.errors import GraphError, OptionError, nearest
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.interpret import interpret
from megengine.traced_module.passes.guilty import Key, copy_of, difference, first_difference, run_of, write_reproducer
from megengine.traced_module.passes.rewriting import Rule, rewrite
from megengine.traced_module.provenance import mark


@dataclass(frozen=True, slots=True)
class Pass:
    """A named transform of a graph in place; `run` returns True if it changed something.

    One that is `by_name_only` takes no part in `optimize(module, "all")`: it makes a graph less general, or undoes
    what others do. `level` says what it works on: "calls", "ops" (what `lower` gives), or "" for both.
    """

    name: str
    run: Callable[[InternalGraph], bool]
    by_name_only: bool = False
    level: str = ""

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


def register_pass(one: Pass, *, replace: bool = False) -> Pass:
    """Let `optimize` and the command know a pass by its name. A name in use is an error unless `replace` is set."""
    if one.name in _registered and not replace:
        raise OptionError(f"register_pass: {one.name!r} is registered already; choose another name")
    _registered[one.name] = one
    return one


def get_registered_pass(pass_name: str, level: str = "") -> Pass:
    """A registered pass.

    Raises:
        OptionError: there is none of that name, or it does not work on graphs of `level` ("calls", "ops", "" for any);
            the nearest name that does is given.
    """
    known = {one.name: one for one in registered_passes(level)}
    if pass_name in known:
        return known[pass_name]
    listed = f"known{' for graphs of ' * bool(level)}{level}: {', '.join(known)}"
    if pass_name in _registered:
        raise OptionError(f"pass {pass_name!r} works on graphs of {_registered[pass_name].level}; {listed}")
    raise OptionError(f"unknown pass {pass_name!r}{nearest(pass_name, known)}; {listed}")


def registered_passes(level: str = "calls") -> tuple[Pass, ...]:
    """Registered passes for graphs of "calls" or of "ops" ("": all), in the order in which they were registered."""
    return tuple(one for one in _registered.values() if "" in (level, one.level) or level == one.level)


def _run(one: Pass, graph: InternalGraph) -> tuple[bool, bool]:
    """Run a pass in the open transaction, and note it at what it made: (it says so, it did) change something."""
    step = graph._journal.open
    assert step is not None
    changes, made = len(step.changes), len(step.made)
    with graph._journal.runs(one.name):
        changed = one.run(graph)
    mark(step.made[made:], one.name)
    return changed, len(step.changes) > changes


@dataclass
class PassManager:
    """Runs passes in order and lints after each that made a change, and at the end.

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
        checked = not self.passes
        for one in self.passes:
            before = copy_of(graph) if expected is not None else None
            with graph._edit(one.name):
                changed, made = _run(one, graph)
            if changed:
                self.changed.append(one.name)
            checked = changed or made
            if checked:
                graph.lint()
            if before is not None:
                self._compare(one, before, graph, expected)
        if not checked:  # what a pass breaks behind the graph's back is found all the same
            graph.lint()
        return self.changed

    def _compare(self, one: Pass, before: InternalGraph, after: InternalGraph, expected: Any) -> None:
        inputs = self.check_with or ()
        got = interpret(after, inputs)
        if len(got) != len(expected):
            raise GraphError(f"pass {one.name!r} leaves {len(got)} results; expected {len(expected)}")
        worst = max(map(difference, expected, got), default=0.0)
        if worst <= self.tolerance:
            return
        runs = run_of(before, inputs), run_of(after, inputs)
        first = first_difference(*runs, self.tolerance)
        where = "" if first is None else f"; the first value that differs is {_in_words(first)}"
        if first is not None and self.reproducer is not None:
            write_reproducer(Path(self.reproducer), *runs, first)
            where += f"; reproducer in {self.reproducer}"
        raise GraphError(
            f"pass {one.name!r} changes the result by {worst:.3g} of its range; expected {self.tolerance}{where}"
        )


def _in_words(key: Key) -> str:
    path, _, name = key
    return f"{name!r} of {path}" if path else repr(name)
