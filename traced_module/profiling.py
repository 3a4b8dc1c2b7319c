"""How long each expression of a graph takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megengine.core.errors import OptionError
from megengine.core.notebook import html_table, html_text
from megengine.dispatch.refusal import kinds_named
from megengine.traced_module.interpret import interpret
from megengine.traced_module.ir.expr import Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.provenance import module_path
from megengine.traced_module.pictures.boxes import called_name
from megengine.traced_module.pictures.tables import clean, table, terminal_width
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.untraced import remedy_for

HEADINGS = ("call", "of", "module", "times", "ms", "share")


@dataclass(frozen=True, slots=True)
class Timing:
    """One expression.

    Attributes:
        name, called, module: as in a `Row` of `summary`.
        source: file and line of the user's code that made it.
        calls: how often it ran in one run of the model: an expression of a shared submodule may more than once.
        seconds: wall time of all of these together, the median of the runs; of a submodule's call without its inside.
    """

    name: str
    called: str
    module: str
    source: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """Timings in the order in which expressions first ran. Prints as a table, longest first.

    Attributes:
        timings: one an expression that ran.
        seconds: wall time of a run, the median.
        runs: how many there were.
        outputs: results of the last run, in the order of the graph's outputs.
    """

    name: str
    timings: tuple[Timing, ...]
    seconds: float
    runs: int
    outputs: tuple[Any, ...]

    def to_json(self) -> dict[str, Any]:
        rows = [{key: getattr(one, key) for key in Timing.__slots__} for one in self.timings]
        return {"name": self.name, "seconds": self.seconds, "runs": self.runs, "timings": rows}

    def to_text(self, width: int | None = None) -> str:
        """The table, in lines of at most `width` characters; None for no limit."""
        return "\n".join([*table(HEADINGS, self._rows(), numbers=3, width=width), "", self._total()])

    def _rows(self) -> list[tuple[str, ...]]:
        whole = sum(one.seconds for one in self.timings) or 1.0
        return [
            (
                *(one.name, one.called, one.module, str(one.calls)),
                *(f"{one.seconds * 1e3:.3f}", f"{100 * one.seconds / whole:.1f} %"),
            )
            for one in sorted(self.timings, key=lambda one: -one.seconds)
        ]

    def _total(self) -> str:
        return f"{clean(self.name)}: {self.seconds * 1e3:.3f} ms a run, median of {self.runs}"

    def _repr_html_(self) -> str:
        return html_table(HEADINGS, self._rows(), 3) + html_text(self._total())

    def __repr__(self) -> str:
        return self.to_text(terminal_width())


@kinds_named
def profile(traced: TracedModule, *args: Any, runs: int = 5, **kwargs: Any) -> Profile:
    """Run a traced module expression by expression and measure each, those of submodules too.

    Args:
        traced: a module of calls or of ops.
        args, kwargs: arguments of its forward.
        runs: how many runs are measured; one run before them is not measured.

    Raises:
        OptionError: it is no traced module, or there is no run.
        GraphError: the module was not traced with these arguments.

    Example:
        >>> print(profile(traced, x, runs=10))  # doctest: +SKIP
    """
    if not isinstance(traced, TracedModule):
        raise OptionError(f"profile: got {type(traced).__name__}; expected a TracedModule; {remedy_for(traced)}")
    if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
        raise OptionError(f"profile: runs is {runs!r}; expected a count, 1 or more")
    graph, leaves = TracedModule.select(traced, args, kwargs)
    clock = _Clock()
    outputs = interpret(graph, leaves)
    whole = []
    for _ in range(runs):
        begun = time.perf_counter()
        outputs = clock.run(lambda on_expr: interpret(graph, leaves, on_expr=on_expr))
        whole.append(time.perf_counter() - begun)
    return Profile(graph.name, clock.timings(), statistics.median(whole), runs, tuple(outputs))


class _Clock:
    """Gives the time from one expression to the next to the first of them."""

    def __init__(self) -> None:
        self.exprs: dict[int, Expr] = {}
        self.runs: list[dict[int, tuple[int, float]]] = []  # expression -> how often, seconds

    def run(self, work: Callable[[Callable[[Expr], None]], list[Any]]) -> list[Any]:
        """Do the work once; it calls its argument before each expression."""
        found: dict[int, tuple[int, float]] = {}
        at: Expr | None = None
        begun = 0.0

        def close() -> None:
            if at is not None:
                count, seconds = found.get(id(at), (0, 0.0))
                found[id(at)] = count + 1, seconds + time.perf_counter() - begun

        def on_expr(expr: Expr) -> None:
            nonlocal at, begun
            close()
            self.exprs.setdefault(id(expr), expr)
            at, begun = expr, time.perf_counter()

        result = work(on_expr)
        close()
        self.runs.append(found)
        return result

    def timings(self) -> tuple[Timing, ...]:
        """Medians of all runs; inputs, constants and reads of attributes take no measurable time."""
        made = []
        for key, expr in self.exprs.items():
            if isinstance(expr, (Input, Constant, GetAttr)):
                continue
            seconds = statistics.median(run[key][1] for run in self.runs)
            source = str(expr.meta.get("source") or "")
            calls = self.runs[-1][key][0]
            made.append(Timing(expr.name, called_name(expr), module_path(expr), source, calls, seconds))
        return tuple(made)
