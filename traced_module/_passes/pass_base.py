"""Passes as MegEngine's users write them: classes that look at one expression after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from megengine.core.errors import GraphError, OptionError, nearest
from megengine.logger import get_logger
from megengine.traced_module.ir.expr import Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.queries import child_graph
from megengine.traced_module.passes import pass_manager
from megengine.traced_module.passes.pass_manager import Pass, registered_passes
from megengine.traced_module.traced import TracedModule

MOST_SWEEPS = 100

_pass_dict: dict[str, type[BasePass]] = {}


class PassContext:
    """Which passes do not run, and settings that passes may read (`_config`)."""

    def __init__(self, disabled_pass: Iterable[str] | None = None, pass_config: dict[str, Any] | None = None) -> None:
        self._disabled_pass: set[str] = set()
        self._config = pass_config
        if disabled_pass:
            self.add_diabled_pass(disabled_pass)

    def add_diabled_pass(self, passes: Iterable[str] | str) -> None:
        """Disable passes by name; the method's name is spelt as in MegEngine."""
        self._disabled_pass.update([passes] if isinstance(passes, str) else passes)

    def pass_enabled(self, pas: BasePass | str) -> bool:
        return (pas if isinstance(pas, str) else pas.name) not in self._disabled_pass


_default_context = PassContext()


def get_default_pass_context() -> PassContext:
    """The context that is used where none is given."""
    return _default_context


def register_pass(names: str | list[str]) -> Callable[[type[BasePass]], type[BasePass]]:
    """A decorator: `get_registered_pass`, `required_pass` and `optimize` know the class by these names."""

    def register(cls: type[BasePass]) -> type[BasePass]:
        for name in [names] if isinstance(names, str) else names:
            _pass_dict[name] = cls
            pass_manager.register_pass(
                Pass(name, lambda graph: cls().as_pass().run(graph), by_name_only=True), replace=True
            )
        return cls

    return register


def get_registered_pass(pass_name: str) -> type[BasePass]:
    """The class of a registered pass. Raises OptionError with the nearest name."""
    if pass_name in _pass_dict:
        return _pass_dict[pass_name]
    own = {p.name: p for p in registered_passes()}
    if pass_name not in own:
        known = [*_pass_dict, *own]
        raise OptionError(
            f"pass {pass_name!r} is unknown{nearest(pass_name, known)}; known: {', '.join(known)}; "
            "declare it with register_pass"
        )
    return type(pass_name, (_OwnPass,), {"name": pass_name, "own": own[pass_name]})


class BasePass:
    """A transform of a traced module, in place: `run_transform(expr)` is called for every expression.

    It gives the expression again, or the one that took its place. `run_once = False` repeats the sweep until nothing
    changes; passes named in `required_pass` run first.
    """

    name: ClassVar[str] = ""
    run_once: ClassVar[bool] = True
    required_pass: ClassVar[list[str]] = []

    def __init__(self) -> None:
        """Nothing to set up; subclasses make their patterns here."""

    def __call__(self, mod: TracedModule, pass_ctx: PassContext = _default_context) -> TracedModule:
        """Run the required passes and this one; returns `mod`. Raises OptionError for what is no traced module."""
        if not isinstance(mod, TracedModule):
            raise OptionError(f"{type(self).__name__}: expected a traced module, got {type(mod).__name__}")
        stopped = [n for n in (*self.required_pass, self.name) if not pass_ctx.pass_enabled(n)]
        if stopped:
            get_logger(__name__).warning(f"{self.name} is skipped, since {', '.join(stopped)} is disabled")
            return mod
        for required in self.required_pass:
            get_registered_pass(required)()(mod, pass_ctx)
        return self.apply_optimization(mod, pass_ctx)

    def apply_optimization(self, mod: TracedModule, pass_ctx: PassContext) -> TracedModule:
        """Sweep over the module's graphs, again while something changes unless `run_once`."""
        for graph in mod.graphs:
            with graph.journal.transaction(), graph.journal.runs(self.name):
                self.sweep(graph)
            graph.lint()
        return mod

    def sweep(self, graph: InternalGraph) -> bool:
        """All sweeps over one graph; True if something changed. Raises GraphError after 100."""
        for count in range(MOST_SWEEPS):
            changed = self.visit_graph(graph)
            if self.run_once or not changed:
                return changed or count > 0
        raise GraphError(
            f"pass {self.name!r} still changes {graph.name!r} after {MOST_SWEEPS} sweeps; do passes conflict?"
        )

    def before_visit_graph(self, graph: InternalGraph) -> None:
        """Called for each graph before its expressions."""

    def run_transform(self, expr: Expr) -> Expr:
        """What the pass does at an expression."""
        raise NotImplementedError(f"{type(self).__name__} has no run_transform; define it in the subclass")

    def visit_graph(self, graph: InternalGraph) -> bool:
        """One sweep over a graph and the graphs of its submodules; True if something changed."""
        return self._visit(graph, set(), backwards=False)

    def _visit(self, graph: InternalGraph, seen: set[int], *, backwards: bool) -> bool:
        seen.add(id(graph))
        self.before_visit_graph(graph)
        changed = False
        for expr in _alive(graph, backwards=backwards):
            child = child_graph(expr)
            result = self.run_transform(expr)
            if not isinstance(result, Expr):
                raise OptionError(
                    f"pass {self.name!r}: run_transform of {expr!r} returned {type(result).__name__}; expected the "
                    "expression, or the one in its place"
                )
            changed |= result is not expr
            if child is not None and id(child) not in seen:
                changed |= self._visit(child, seen, backwards=backwards)
        return changed

    def as_pass(self) -> Pass:
        """A pass of this package's manager, which runs the required ones before."""

        def run(graph: InternalGraph) -> bool:
            changed = [get_registered_pass(required)().as_pass().run(graph) for required in self.required_pass]
            return self.sweep(graph) or any(changed)

        return Pass(self.name or type(self).__name__, run)

    def __repr__(self) -> str:
        return self.name


def _alive(graph: InternalGraph, *, backwards: bool) -> Iterator[Expr]:
    """Expressions as they are when the sweep begins, without those that were removed since."""
    exprs = [e for e in graph.exprs(recursive=False) if not isinstance(e, Input)]
    for expr in reversed(exprs) if backwards else exprs:
        if expr.in_graph:
            yield expr


class ForwardPass(BasePass):
    """Looks at expressions in execution order."""


class BackwardPass(BasePass):
    """Looks at expressions from the last to the first."""

    def visit_graph(self, graph: InternalGraph) -> bool:
        return self._visit(graph, set(), backwards=True)


class _OwnPass(BasePass):
    """A pass of this package."""

    own: ClassVar[Pass]

    def visit_graph(self, graph: InternalGraph) -> bool:
        return self.own.run(graph)
