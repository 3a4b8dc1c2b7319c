"""The hierarchy of a picture: sheets of boxes, some of which open into sheets of their own.

A call of a submodule opens into the graph of that submodule, an op that runs graphs into these. In graphs without
submodules (ops, flattened calls) a run of expressions with one module path is one box, and runs inside of it are boxes
of its sheet. Runs in the order of execution can be folded without a cycle in any graph. Sheets that are still long are
cut into parts, so that none has more than `MOST` boxes.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from megengine.core.errors import GraphError
from megengine.traced_module.bodies import bodies_of
from megengine.traced_module.ir.expr import Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.ir.provenance import graph_path
from megengine.traced_module.ir.queries import child_graph

K = TypeVar("K", bound=Hashable)
Paths = dict[int, tuple[str, ...]]  # of each expression, by identity
MOST, PART, FEWEST = 150, 100, 3  # boxes of a sheet, of a part of what is longer, and of a module that is folded
DEEPEST = 20  # folds within folds: module paths may come from files


@dataclass(slots=True, eq=False)
class Item:
    """A box.

    Attributes:
        expr: the expression that it shows; None for a fold.
        made: the expressions in it, those of its folds included; none for a value from outside.
        source: for a value from outside of the sheet, the expression that makes it.
        title: for a fold, the module path or the range of names.
        inside: the sheet that it opens into.
        row, column: its cell in the grid of its sheet.
    """

    expr: Expr | None = None
    made: tuple[Expr, ...] = ()
    source: Expr | None = None
    title: str = ""
    inside: Sheet | None = None
    row: int = 0
    column: int = 0

    @property
    def shown(self) -> Expr | None:
        """The expression whose name and shape are shown; None for a fold."""
        return self.expr or self.source


@dataclass(slots=True, eq=False)
class Sheet:
    """Boxes of one level in an order in which operands come first, and edges between their indices."""

    name: str
    graph: InternalGraph
    items: list[Item] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def returned(self) -> set[int]:
        """Indices of the boxes that make outputs of the graph."""
        outputs = {id(node.expr) for node in self.graph.outputs}
        return {i for i, item in enumerate(self.items) if any(id(expr) in outputs for expr in item.made)}


def shown(graph: InternalGraph) -> list[Expr]:
    """Expressions that are drawn. Constants, layers and tensors of the module are part of the call that uses them."""
    return [expr for expr in graph.exprs(recursive=False) if not _is_part(expr)]


def _is_part(expr: Expr) -> bool:
    module_itself = isinstance(expr, Input) and isinstance(expr.outputs[0], ModuleNode)
    return isinstance(expr, (Constant, GetAttr)) or module_itself


def sheet_of(graph: InternalGraph) -> Sheet:
    """The sheet of a graph, with all sheets in it; a graph that is called several times is one sheet."""
    if not isinstance(graph, InternalGraph):
        raise GraphError(f"drawing: got a {type(graph).__name__}; expected a graph, as traced.graph")
    return _Folding({}).graph(graph)


def levels(depth: int | None, what: str = "drawing") -> float:
    """How many levels are opened. Raises GraphError, with `what` in front, if `depth` is no count of levels."""
    if depth is not None and (not isinstance(depth, int) or depth < 0):
        raise GraphError(f"{what}: depth is {depth!r}; expected None or a count of levels, 0 or more")
    return float("inf") if depth is None else depth


def cells(items: Iterable[tuple[K, Sequence[K]]]) -> dict[K, tuple[int, int]]:
    """Row and column of each key, from (key, keys of its operands) in an order in which operands come first.

    The row is the length of the longest way from an input; the column is that of the first operand, if it is free.
    """
    places: dict[K, tuple[int, int]] = {}
    free: dict[tuple[int, int], int] = {}  # a taken cell -> the next column to try in its row
    for key, operands in items:
        before = [places[operand] for operand in operands if operand in places]
        row = 1 + max((at[0] for at in before), default=-1)
        column = first = before[0][1] if before else 0
        while (row, column) in free:
            column = free[row, column]
        free[row, column] = column + 1
        free[row, first] = column + 1  # the next search that begins here starts behind this one
        places[key] = (row, column)
    return places


class _Folding:
    def __init__(self, sheets: dict[int, Sheet]) -> None:
        self.sheets = sheets

    def graph(self, graph: InternalGraph) -> Sheet:
        if id(graph) not in self.sheets:
            sheet = self.sheets[id(graph)] = Sheet(graph.qualname, graph)
            exprs = shown(graph)
            paths = {id(expr): _path(expr, graph) for expr in exprs}
            self._fill(sheet, self._folded(exprs, paths, 0, 0, graph))
        return self.sheets[id(graph)]

    def _folded(self, exprs: Sequence[Expr], paths: Paths, depth: int, level: int, graph: InternalGraph) -> list[Item]:
        """Boxes of expressions that share the first `depth` parts of their path."""
        items: list[Item] = []
        for _, group in itertools.groupby(exprs, lambda expr: paths[id(expr)][depth : depth + 1]):
            run = list(group)
            if len(run) < FEWEST or len(paths[id(run[0])]) == depth or level == DEEPEST:
                items += map(self._single, run)
            else:
                run_paths = [paths[id(expr)] for expr in run]
                ends = zip(min(run_paths), max(run_paths), strict=False)  # all share the parts that these two share
                common = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends)]
                inside = self._folded(run, paths, len(common), level + 1, graph)
                items.append(self._fold(".".join(common), inside, graph))
        while len(items) > MOST:  # too many for one sheet
            size = max(PART, -(-len(items) // MOST))
            parts = [items[i : i + size] for i in range(0, len(items), size)]
            names = ([i.title if i.expr is None else i.expr.name for i in (part[0], part[-1])] for part in parts)
            items = [self._fold(" … ".join(ends), part, graph) for ends, part in zip(names, parts, strict=True)]
        return items

    def _single(self, expr: Expr) -> Item:
        child = child_graph(expr)
        return Item(expr, (expr,), inside=self._bodies(expr) if child is None else self.graph(child))

    def _bodies(self, expr: Expr) -> Sheet | None:
        """The graphs that an op runs, a box for each; None for other expressions."""
        items = []
        for name, body in bodies_of(expr):
            made = tuple(shown(body.graph) or body.graph.exprs(recursive=False))
            items.append(Item(None, made, title=name, inside=self.graph(body.graph)))
        if not items:
            return None
        sheet = Sheet(expr.name, expr.top_graph)
        self._fill(sheet, items)
        return sheet

    def _fold(self, title: str, items: list[Item], graph: InternalGraph) -> Item:
        exprs = tuple(expr for item in items for expr in item.made)
        sheet = Sheet(title, graph)
        here = {id(expr) for expr in exprs}
        outside = {
            id(node.expr): node.expr
            for expr in exprs
            for node in expr.inputs
            if id(node.expr) not in here and not _is_part(node.expr)
        }
        self._fill(sheet, [*(Item(source=expr) for expr in outside.values()), *items])
        return Item(None, exprs, title=title, inside=sheet)

    def _fill(self, sheet: Sheet, items: list[Item]) -> None:
        where = {id(expr): i for i, item in enumerate(items) for expr in (item.made or (item.source,))}
        pairs = dict.fromkeys(
            (where[id(node.expr)], i)
            for i, item in enumerate(items)
            for expr in item.made
            for node in expr.inputs
            if where.get(id(node.expr), i) != i
        )
        sheet.items, sheet.edges = items, list(pairs)
        operands: list[list[int]] = [[] for _ in items]
        for start, end in pairs:
            operands[end].append(start)
        for i, cell in cells(enumerate(operands)).items():
            items[i].row, items[i].column = cell


def results(item: Item) -> list[TensorNode]:
    """The values that leave a box: all of an expression; of a fold those that something outside uses."""
    if item.shown is not None:
        return [n for n in item.shown.outputs if isinstance(n, TensorNode)]
    here = {id(expr) for expr in item.made}
    returned = {id(n) for n in item.made[0].top_graph.outputs}
    nodes = [n for expr in item.made for n in expr.outputs if isinstance(n, TensorNode)]
    return [n for n in nodes if id(n) in returned or any(id(user) not in here for user in n.users)]


def _path(expr: Expr, graph: InternalGraph) -> tuple[str, ...]:
    """The parts of the module path of an expression, below the module of its graph; () for its own calls."""
    path = str(expr.meta.get("module") or "")
    own = graph_path(graph)
    if own and (path + ".").startswith(own + "."):
        path = path[len(own) + 1 :]
    return tuple(path.split(".")) if path else ()
