"""The costs of a model, call by call: shapes, parameters, multiply-accumulates; as values and as a table of text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from megengine.core.dtype import storage_of
from megengine.core.errors import GraphError
from megengine.core.notebook import html_table, html_text
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import Op, interpose
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.bodies import bodies_of
from megengine.traced_module.ir.expr import Apply, Call, Constant, Expr, GetAttr, Input, is_call_module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import node_path
from megengine.traced_module.ir.node import ModuleNode, TensorNode, get_subattr
from megengine.traced_module.ir.provenance import module_path, provenance
from megengine.traced_module.ir.queries import child_graph
from megengine.traced_module.nesting import nests
from megengine.traced_module.pictures.boxes import called_name
from megengine.traced_module.pictures.hierarchy import levels, shown
from megengine.traced_module.pictures.tables import LONGEST_CELL, clean, table, terminal_width
from megengine.traced_module.pictures.texts import shape_text, shortened
from megengine.traced_module.tracing.calls import run_call, stand_in, untouched
from megengine.traced_module.tracing.deferred import Deferring

Weights = dict[int, tuple[int, int]]  # of each tensor, by identity: elements and bytes


class _Counting(Deferring):
    """Computes nothing, and counts the multiply-accumulates of the applied ops."""

    macs = 0

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        results = super().apply(op, tensors, attrs, proceed)
        if not isinstance(results, tuple):
            self.macs += op.macs([t.spec for t in tensors], results.spec, attrs)
        return results


class Costs:
    """Parameters and multiply-accumulates of the expressions of a graph and of the graphs of its submodules.

    `unknown` collects calls whose multiply-accumulates are not known, because they depend on the values of inputs:
    of ops that run graphs, which ones run, and how often.
    """

    def __init__(self, graph: InternalGraph) -> None:
        self.graph = graph
        self.unknown: list[Expr] = []
        self._found: dict[int, int | None] = {}
        self._inner: dict[int, tuple[int, Weights]] = {}

    def macs(self, expr: Expr) -> int | None:
        """Multiply-accumulates of one call, those of a submodule included; None if they are not known."""
        child = child_graph(expr)
        if child is not None:
            return self.total(child)[0]
        if id(expr) not in self._found:
            self._found[id(expr)] = self._count(expr)
        return self._found[id(expr)]

    def _count(self, expr: Expr) -> int | None:
        if any(self.total(body.graph)[0] for _, body in bodies_of(expr)):
            self.unknown.append(expr)
            return None
        if isinstance(expr, Apply):
            return expr.macs
        if not isinstance(expr, Call):
            return 0
        counting = _Counting()
        try:
            values = [n.owner if isinstance(n, ModuleNode) else stand_in(n) for n in expr.inputs]
            with interpose(counting), untouched(*values):
                run_call(expr, values)
        except Exception:  # functions of the user may raise anything without real values
            self.unknown.append(expr)
            return None
        return counting.macs

    def weights(self, expr: Expr) -> Weights:
        """Parameters that one call uses (in graphs of ops: constants), those of a submodule included."""
        child = child_graph(expr)
        if child is not None:
            return self.total(child)[1]
        weights: Weights = {}
        for node in expr.inputs:
            if isinstance(node.expr, Constant) and not self.graph.of_calls:
                weights[id(node)] = _size(node.spec)
            elif isinstance(node, TensorNode) and isinstance(node.expr, GetAttr):
                value = get_subattr(node.expr.inputs[0].owner, node.expr.name)
                weights |= _sizes([value])
        for _, body in bodies_of(expr):
            weights |= self.total(body.graph)[1]
        if is_call_module(expr):
            weights |= _sizes(expr.inputs[0].owner.parameters())
        return weights

    def total(self, graph: InternalGraph) -> tuple[int, Weights]:
        """Known multiply-accumulates of a run of a graph, and all parameters that it uses, each once."""
        if id(graph) not in self._inner:
            macs, weights = 0, {}
            for expr in graph.exprs(recursive=False):
                macs += self.macs(expr) or 0
                weights |= self.weights(expr)
            self._inner[id(graph)] = macs, weights
        return self._inner[id(graph)]


def _size(spec: TensorSpec) -> tuple[int, int]:
    count = math.prod(spec.shape)
    return count, count * storage_of(spec.dtype).itemsize


def _sizes(values: Any) -> Weights:
    return {id(v): _size(v.spec) for v in values if isinstance(v, Parameter)}


def sizes(weights: Weights) -> tuple[int, int]:
    return sum(w[0] for w in weights.values()), sum(w[1] for w in weights.values())


@dataclass(frozen=True, slots=True)
class Row:
    """One call.

    Attributes:
        name: name of its first result, unique in its graph.
        called: op, function, method, or class of the layer.
        module: path of the layer, or of the module that makes the call.
        depth: 0 in the outermost graph, 1 inside of its submodules, ...
        specs: shapes and dtypes of the results.
        parameters: elements of the parameters used (in graphs of ops: constants).
        macs: multiply-accumulates; None if they are not known.
        qualname: path of its first result.
        source: file and line of the user's code that made it, if that is known.
        passes: names of the passes that changed it.
        node: path of its first result for `graph.node`: module path and name.
    """

    name: str
    called: str
    module: str
    depth: int
    specs: tuple[TensorSpec, ...]
    parameters: int
    macs: int | None
    qualname: str = ""
    source: str = ""
    passes: tuple[str, ...] = ()
    node: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """Rows in the order of execution, that of a submodule before those of its calls, and totals.

    It prints as a table that fits the terminal. `parameters` and `weight_bytes` count every tensor once; `macs` leaves
    out the calls named in `unknown`, whose multiply-accumulates depend on the values of inputs.
    """

    name: str
    rows: tuple[Row, ...]
    parameters: int
    weight_bytes: int
    macs: int
    unknown: tuple[str, ...] = ()

    def to_text(self, width: int | None = None) -> str:
        """The table, in lines of at most `width` characters; None for no limit."""
        if width is not None and (not isinstance(width, int) or isinstance(width, bool) or width < 1):
            raise GraphError(f"summary: width is {width!r}; expected None or a count of characters, 1 or more")
        lines = table(HEADINGS, [_cells(row) for row in self.rows], numbers=2, width=width)
        folded = [part for note in _notes(self) for part in (textwrap.wrap(note, max(width, 20)) if width else [note])]
        return "\n".join([*lines, "", *folded])

    def __repr__(self) -> str:
        return self.to_text(terminal_width())

    def _repr_html_(self) -> str:
        rows = [_cells(row, indent="\u2003") for row in self.rows]
        return html_table(HEADINGS, rows, numbers=2) + html_text("\n".join(_notes(self)))


@nests()
def summarize(graph: InternalGraph, *, depth: int | None = None) -> Summary:
    """The costs of a graph, call by call. `depth` levels of submodules are opened; all by default.

    Raises:
        GraphError: `depth` is no count of levels.

    Example:
        >>> print(summarize(traced.graph))  # doctest: +SKIP
    """
    deepest, costs = levels(depth, "summary"), Costs(graph)
    macs, weights = costs.total(graph)
    rows = tuple(_rows(graph, costs, deepest, 0))
    return Summary(graph.name, rows, *sizes(weights), macs, tuple(e.name for e in costs.unknown))


def _rows(graph: InternalGraph, costs: Costs, deepest: float, depth: int, where: str = "") -> Iterator[Row]:
    """Rows of a graph; `where` is the path of one that an op runs."""
    for expr in shown(graph):
        if isinstance(expr, Input):
            continue
        specs = tuple(n.spec for n in expr.outputs if isinstance(n, TensorNode))
        costs_of = (sizes(costs.weights(expr))[0], costs.macs(expr))
        place = where + node_path(expr.outputs[0]) if expr.outputs else ""
        yield Row(expr.name, called_name(expr), module_path(expr), depth, specs, *costs_of, *provenance(expr), place)
        child = child_graph(expr)
        if child is not None and depth < deepest:
            yield from _rows(child, costs, deepest, depth + 1)
        for title, body in bodies_of(expr) if depth < deepest else ():
            yield from _rows(body.graph, costs, deepest, depth + 1, f"{place}.{title}.")


HEADINGS = ("call", "of", "module", "shape", "dtype", "parameters", "MACs")


def _notes(summary: Summary) -> list[str]:
    notes = [
        f"{shortened(clean(summary.name), LONGEST_CELL)}: "
        f"{counted(len(summary.rows), 'call')}, {counted(summary.parameters, 'parameter', spec=',')} "
        f"({summary.weight_bytes / 1e6:.2f} MB), {summary.macs:,} multiply-accumulates ({2 * summary.macs:,} FLOPs)"
    ]
    if summary.unknown:
        names = shortened(", ".join(map(clean, summary.unknown)), 3 * LONGEST_CELL)
        notes.append(
            f"without {counted(len(summary.unknown), 'call')} whose multiply-accumulates need real values: {names}"
        )
    return notes


def _cells(row: Row, *, indent: str = "  ") -> tuple[str, ...]:
    shapes = ", ".join(shape_text(s.shape) for s in row.specs)
    dtypes = ", ".join(dict.fromkeys(str(s.dtype) for s in row.specs))
    parameters = f"{row.parameters:,}" if row.parameters else "-"
    macs = "?" if row.macs is None else f"{row.macs:,}" if row.macs else "-"
    return (indent * min(row.depth, 12) + row.name, row.called, row.module, shapes, dtypes, parameters, macs)
