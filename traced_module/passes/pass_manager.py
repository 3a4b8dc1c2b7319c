"""Running passes: in order, linted, and on request compared numerically, with the guilty one named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.collecting import collection_paused
from megengine.core.errors import GraphError, OptionError, nearest
from megengine.core.pytree import tree_map
from megengine.core.text import counted
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.interpret import interpret
from megengine.traced_module.ir.end_names import note_result_names, result_names
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import mark
from megengine.traced_module.passes.guilty import Key, copy_of, difference, first_difference, run_of, write_reproducer
from megengine.traced_module.passes.rewriting import Rule, rewrite
from megengine.traced_module.traced import TracedModule


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
    def of_rules(cls, name: str, *rules: Rule, by_name_only: bool = False) -> Pass:
        """A pass that applies rules until none fits any more."""

        def run(graph: InternalGraph) -> bool:
            changed = False
            while rewrite(graph, rules):
                changed = True
            return changed

        return cls(name, run, by_name_only)

    @classmethod
    def of_passes(cls, name: str, *passes: Pass) -> Pass:
        """A pass that runs others, which are chosen by name only."""
        return cls(name, lambda graph: any([one.run(graph) for one in passes]), by_name_only=True)


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
    transaction = graph.journal.open
    assert transaction is not None
    changes, made = len(transaction.changes), len(transaction.made)
    outputs, names = graph.outputs, result_names(graph)
    with graph.journal.runs(one.name):
        changed = one.run(graph)
    if graph.outputs != outputs and len(graph.outputs) == len(outputs):
        note_result_names(graph, names)
    mark(transaction.made[made:], one.name)
    return changed, len(transaction.changes) > changes


def graph_entered(module: TracedModule, arguments: Any) -> tuple[InternalGraph, list[Any]]:
    """The graph of a module that arguments enter (a tensor, or a sequence of them), and its inputs."""
    arguments = (arguments,) if isinstance(arguments, (Tensor, np.ndarray)) else tuple(arguments)
    return module.select(tree_map(lambda x: Tensor(x) if isinstance(x, np.ndarray) else x, arguments), {})


@dataclass
class PassManager:
    """Runs passes in order and lints after each that made a change, and at the end.

    Args:
        passes: what to run: passes, or names of registered ones.
        check_with: inputs of the graph (or arguments of the module); outputs are compared before and after each pass.
        tolerance: largest difference accepted, as a part of the largest output.
        reproducer: folder; when a pass is found guilty, the smallest part of the graph that it changes wrongly is
            written there: before.mgt, after.mgt and inputs.npz.

    Example:
        >>> PassManager([fold], check_with=[x]).run(traced)  # doctest: +SKIP
    """

    passes: Sequence[Pass | str]
    check_with: Sequence[Any] | None = None
    tolerance: float = 1e-4
    reproducer: str | Path | None = None
    changed: list[str] = field(default_factory=list)

    def run(self, graph: InternalGraph | TracedModule) -> list[str]:
        """Run all passes in place, each one transaction for `undo`; returns the names of those that changed something.

        Args:
            graph: a graph, or a traced module: then all graphs that it was traced with, one after the other.

        Raises:
            GraphError: it is neither; or a pass changed what a graph computes: it is named, and so is the first value
                that differs. The graph is left as that pass made it.
        """
        chosen = [get_registered_pass(one) if isinstance(one, str) else one for one in self.passes]
        self.changed = []
        with collection_paused():
            for each, inputs in self._graphs(graph):
                self._run(each, chosen, inputs)
        return self.changed

    def _graphs(self, model: Any) -> list[tuple[InternalGraph, Sequence[Any] | None]]:
        """(graph, inputs to check it with) of what is given to `run`."""
        if isinstance(model, InternalGraph):
            return [(model, self.check_with)]
        if not isinstance(model, TracedModule):
            remedy = "; trace the module first" if isinstance(model, Module) else ""
            raise GraphError(f"PassManager: got {type(model).__name__}; expected a graph or a TracedModule{remedy}")
        checked, inputs = (None, None) if self.check_with is None else graph_entered(model, self.check_with)
        return [(each, inputs if each is checked else None) for each in model.graphs]

    def _run(self, graph: InternalGraph, passes: Sequence[Pass], inputs: Sequence[Any] | None) -> None:
        expected = None if inputs is None else interpret(graph, inputs)
        checked = not passes
        for one in passes:
            before = copy_of(graph) if expected is not None else None
            with graph.journal.transaction(one.name):
                changed, made = _run(one, graph)
            if changed and one.name not in self.changed:
                self.changed.append(one.name)
            checked = changed or made
            if checked:
                graph.lint()
            if before is not None:
                self._compare(one, before, graph, expected, inputs or ())
        if not checked:  # finds what a pass breaks without the graph's methods
            graph.lint()

    def _compare(
        self, one: Pass, before: InternalGraph, after: InternalGraph, expected: Any, inputs: Sequence[Any]
    ) -> None:
        got = interpret(after, inputs)
        if len(got) != len(expected):
            raise GraphError(f"pass {one.name!r} leaves {counted(len(got), 'result')}; expected {len(expected)}")
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
