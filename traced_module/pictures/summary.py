"""What a model costs, call by call: shapes, parameters, multiply-accumulates; as values and as a table of text."""

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
from megengine.dispatch import Op, get_op, interpose
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.ir.expr import Apply, Call, Constant, Expr, GetAttr, Input, is_call_module
from megengine.traced_module.ir.functions import get_subattr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import node_path
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.ir.provenance import module_path, provenance
from megengine.traced_module.ir.queries import child_graph
from megengine.traced_module.nesting import nests
from megengine.traced_module.pictures.boxes import called_name
from megengine.traced_module.pictures.hierarchy import shown
from megengine.traced_module.pictures.tables import LONGEST_CELL, clean, table, terminal_width
from megengine.traced_module.pictures.texts import shortened
from megengine.traced_module.tracing.calls import run_call, stand_in, untouched
from megengine.traced_module.tracing.deferred import Deferring

Weights = dict[int, tuple[int, int]]  # of each tensor, by identity: elements and bytes


class _Counting(Deferring):
    """Computes nothing, and counts the multiply-accumulates of what is applied."""

    def __init__(self) -> None:
        self.macs = 0

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Count, and go on with specs only."""
        made = super().apply(op, tensors, attrs, proceed)
        if not isinstance(made, tuple):
            self.macs += op.macs([t.spec for t in tensors], made.spec, attrs)
        return made


class Costs:
    """Parameters and multiply-accumulates of the expressions of a graph and of the graphs of its submodules.

    `unknown` collects calls whose multiply-accumulates are not known, because they need a value that only a real
    input has.
    """

    def __init__(self, graph: InternalGraph) -> None:
        self.graph = graph
        self.unknown: list[Expr] = []
        self._found: dict[int, int | None] = {}
        self._inner: dict[int, tuple[int, Weights]] = {}

    def macs(self, expr: Expr) -> int | None:
        """Multiply-accumulates of one call, those inside of a submodule included; None where they are not known."""
        child = child_graph(expr)
        if child is not None:
            return self._inside(child)[0]
        if id(expr) not in self._found:
            self._found[id(expr)] = self._count(expr)
        return self._found[id(expr)]

    def _count(self, expr: Expr) -> int | None:
        if isinstance(expr, Apply):
            specs = [n.spec for n in expr.inputs]
            return get_op(expr.op).macs(specs, expr.outputs[0].spec, expr.attrs)
        if not isinstance(expr, Call):
            return 0
        counting = _Counting()
        try:
            values = [n.owner if isinstance(n, ModuleNode) else stand_in(n) for n in expr.inputs]
            with interpose(counting), untouched(*values):
                run_call(expr, values)
        except Exception:  # functions of the user's may raise anything without real values
            self.unknown.append(expr)
            return None
        return counting.macs

    def weights(self, expr: Expr) -> Weights:
        """Parameters that one call uses (at op level: constants), those inside of a submodule included."""
        child = child_graph(expr)
        if child is not None:
            return self._inside(child)[1]
        found: Weights = {}
        for node in expr.inputs:
            if isinstance(node.expr, Constant) and not self.graph._inputs_self():
                found[id(node)] = _size(node.spec)
            elif isinstance(node, TensorNode) and isinstance(node.expr, GetAttr):
                value = get_subattr(node.expr.inputs[0].owner, node.expr.name)
                found |= _sizes([value])
        if is_call_module(expr):
            found |= _sizes(expr.inputs[0].owner.parameters())
        return found

    def total(self) -> tuple[int, Weights]:
        """Multiply-accumulates of a run of the graph as far as known, and all parameters that it uses, each once."""
        return self._inside(self.graph)

    def _inside(self, graph: InternalGraph) -> tuple[int, Weights]:
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


@dataclass(frozen=True, slots=True)
class Row:
    """One call.

    Attributes:
        name: name of its first result, unique in its graph.
        called: op, function, method, or class of the layer.
        module: path of the layer, or of the module that makes the call.
        depth: 0 in the outermost graph, 1 inside of its submodules, ...
        specs: shapes and dtypes of the results.
        parameters: elements of the parameters used (constants at op level).
        macs: multiply-accumulates; None where they are not known.
        qualname: path of its first result.
        source: file and line of the user's code that made it, where that is known.
        passes: names of the passes that changed it.
        node: where its first result is found (`graph.node`): module path and name.
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
    """Rows in execution order, a submodule's own row before those of its inside; totals. Prints as a table, as wide
    as the terminal allows.

    `parameters` and `weight_bytes` count a tensor once, however often it is used; `macs` leaves out the calls
    named in `unknown`, which need a value that only a real input has.
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
        return as_text(self, width)

    def __repr__(self) -> str:
        return as_text(self, terminal_width())

    def _repr_html_(self) -> str:
        """What notebooks show."""
        rows = [_cells(row, indent="\u2003") for row in self.rows]
        return html_table(HEADINGS, rows, numbers=2) + html_text("\n".join(_notes(self)))


@nests()
def summarize(graph: InternalGraph, *, depth: int | None = None) -> Summary:
    """What a graph costs, call by call. `depth` levels of submodules are opened; all by default.

    Example:
        >>> print(summarize(traced.graph))  # doctest: +SKIP
    """
    if depth is not None and (not isinstance(depth, int) or depth < 0):
        raise GraphError(f"summary: depth is {depth!r}; expected None or a count of levels, 0 or more")
    costs = Costs(graph)
    macs, weights = costs.total()
    counted, stored = (sum(w[i] for w in weights.values()) for i in (0, 1))
    return Summary(
        graph.name, tuple(_rows(graph, costs, depth, 0)), counted, stored, macs, tuple(e.name for e in costs.unknown)
    )


def _rows(graph: InternalGraph, costs: Costs, levels: int | None, depth: int) -> Iterator[Row]:
    for expr in shown(graph):
        if isinstance(expr, Input):
            continue
        count = sum(elements for elements, _ in costs.weights(expr).values())
        specs = tuple(n.spec for n in expr.outputs if isinstance(n, TensorNode))
        costs_of = (count, costs.macs(expr))
        place = node_path(expr.outputs[0]) if expr.outputs else ""
        yield Row(expr.name, called_name(expr), module_path(expr), depth, specs, *costs_of, *provenance(expr), place)
        child = child_graph(expr)
        if child is not None and (levels is None or depth < levels):
            yield from _rows(child, costs, levels, depth + 1)


HEADINGS = ("call", "of", "module", "shape", "dtype", "parameters", "MACs")


def as_text(found: Summary, width: int | None = None) -> str:
    """A table for a terminal: what cannot be printed is replaced, long names are cut."""
    lines = table(HEADINGS, [_cells(row) for row in found.rows], numbers=2, width=width)
    folded = [part for note in _notes(found) for part in (textwrap.wrap(note, max(width, 20)) if width else [note])]
    return "\n".join([*lines, "", *folded])


def _notes(found: Summary) -> list[str]:
    notes = [
        f"{shortened(clean(found.name), LONGEST_CELL)}: "
        f"{counted(len(found.rows), 'call')}, {counted(found.parameters, 'parameter', spec=',')} "
        f"({found.weight_bytes / 1e6:.2f} MB), {found.macs:,} multiply-accumulates ({2 * found.macs:,} FLOPs)",
    ]
    if found.unknown:
        names = shortened(", ".join(map(clean, found.unknown)), 3 * LONGEST_CELL)
        notes.append(
            f"without {counted(len(found.unknown), 'call')} whose multiply-accumulates need real values: {names}"
        )
    return notes


def _cells(row: Row, *, indent: str = "  ") -> tuple[str, ...]:
    shapes = ", ".join("x".join(map(str, s.shape)) or "scalar" for s in row.specs)
    dtypes = ", ".join(dict.fromkeys(str(s.dtype) for s in row.specs))
    parameters = f"{row.parameters:,}" if row.parameters else "-"
    macs = "?" if row.macs is None else f"{row.macs:,}" if row.macs else "-"
    return (indent * min(row.depth, 12) + row.name, row.called, row.module, shapes, dtypes, parameters, macs)
