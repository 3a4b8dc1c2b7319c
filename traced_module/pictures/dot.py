"""Graphs for Graphviz: a `graphviz.Digraph` with the hierarchy as clusters, and its source."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import graphviz

from megengine.core.collecting import collection_paused
from megengine.core.effectless import warn_caller
from megengine.core.errors import GraphError
from megengine.serialization import write_atomically
from megengine.traced_module.bodies import bodies_of, operands_of
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.nesting import nests
from megengine.traced_module.pictures.boxes import COLOURS
from megengine.traced_module.pictures.drawing import kind, texts, to_png, to_svg
from megengine.traced_module.pictures.hierarchy import Item, Sheet, levels, sheet_of
from megengine.traced_module.pictures.texts import printable, shortened

_LONGEST = 60  # characters of a line


class GraphPicture(graphviz.Digraph):
    """A `graphviz.Digraph` of a graph. Its attributes can be changed before it is rendered.

    If the program `dot` is not installed, SVG and PNG are drawn in the layout of this package, with a RuntimeWarning.
    That layout ignores changed attributes.
    """

    drawn: InternalGraph
    depth: int | None = None

    def pipe(self, format: str | None = None, *args: Any, encoding: str | None = None, **kwargs: Any) -> Any:
        """The rendered picture, as bytes or with `encoding` as text. Raises GraphError if nothing can draw it."""
        try:
            return super().pipe(format, *args, encoding=encoding, **kwargs)
        except graphviz.ExecutableNotFound:
            picture = self._own(format or self.format)
            return picture if encoding is None else picture.decode(encoding)

    def render(
        self, filename: Any = None, directory: Any = None, *args: Any, format: str | None = None, **kwargs: Any
    ) -> str:
        """Write the picture to a file, as `graphviz.Digraph.render`. Raises GraphError as `pipe`."""
        try:
            return super().render(filename, *args, directory=directory, format=format, **kwargs)
        except graphviz.ExecutableNotFound:
            outfile = kwargs.get("outfile")
            kind = format or (Path(outfile).suffix.removeprefix(".") if outfile else self.format)
            picture = self._own(kind)
            path = Path(outfile) if outfile else Path(f"{self.save(filename, directory=directory)}.{kind}")
            write_atomically(path, picture)
            return str(path)

    def _own(self, kind: str) -> bytes:
        if kind not in ("svg", "png"):
            raise GraphError(_missing(self.engine, kind))
        text = "the program dot of Graphviz is not installed: drawn in another layout, without changed attributes"
        warn_caller(text, RuntimeWarning)
        return to_png(self.drawn, depth=self.depth) if kind == "png" else to_svg(self.drawn, depth=self.depth).encode()


@collection_paused()
@nests()
def to_graphviz(graph: InternalGraph, *, depth: int | None = None) -> GraphPicture:
    """The graph as a `graphviz.Digraph`, hierarchy as clusters.

    Args:
        graph: at either level; of a traced module, `traced.graph`.
        depth: how many levels of submodules and module paths are opened, all by default.

    Example:
        >>> picture = to_graphviz(traced.graph, depth=1)  # doctest: +SKIP
        >>> picture.attr(rankdir="LR")  # doctest: +SKIP
        >>> picture.render(outfile="net.pdf")  # doctest: +SKIP

    Raises:
        GraphError: `depth` is no count of levels.
    """
    sheet = sheet_of(graph)
    picture = GraphPicture(name=_plain(graph.name), format="svg", node_attr=_NODES, graph_attr=_CLUSTERS)
    picture.drawn, picture.depth = graph, depth
    writer = _Writer(picture, levels(depth))
    writer.sheet(sheet, {}, "n", 0)
    for start, end in writer.edges:
        picture.edge(start, end)
    return picture


def rendered(graph: InternalGraph, kind: str, *, engine: str = "dot", depth: int | None = None) -> bytes:
    """The picture drawn by a program of Graphviz; `kind` is a suffix such as "pdf".

    Raises:
        GraphError: the program is not installed, or cannot draw it.
    """
    picture = to_graphviz(graph, depth=depth)
    picture.engine = engine
    try:
        return graphviz.Digraph.pipe(picture, kind)
    except graphviz.ExecutableNotFound:
        raise GraphError(_missing(engine, kind)) from None
    except (ValueError, subprocess.CalledProcessError) as exc:
        output = exc.stderr if isinstance(exc, subprocess.CalledProcessError) else str(exc).encode()
        last = printable((output or b"").decode(errors="replace").strip().rpartition("\n")[2])
        raise GraphError(f"the program {engine} of Graphviz does not draw the {kind}: {last}") from exc


def _missing(engine: str, kind: str) -> str:
    return (
        f"a picture of the kind {kind!r} needs the program {engine} of Graphviz, which is not installed: "
        "`apt-get install graphviz` or `brew install graphviz`; or write svg or png in this package's layout"
    )


def to_dot(graph: InternalGraph, *, depth: int | None = None) -> str:
    """The graph in the language of Graphviz; arguments as for `to_graphviz`."""
    return to_graphviz(graph, depth=depth).source


_NODES = {"shape": "box", "style": "rounded,filled", "fontname": "sans-serif"}
_CLUSTERS = {"fontname": "sans-serif", "style": "rounded", "color": "#8a94a6"}


class _Writer:
    """Writes boxes and clusters, and collects the edges between all boxes.

    Clusters are written as lines of one picture: `Digraph.subgraph` would copy the lines of a deep nest once a level.
    """

    def __init__(self, picture: graphviz.Digraph, depth: float) -> None:
        self.picture = picture
        self.depth = depth
        self.edges: dict[tuple[str, str], None] = {}

    def sheet(self, sheet: Sheet, boxes: dict[int, str], prefix: str, level: int) -> None:
        """Write the boxes of a sheet; `made` (identity of a node -> the box that makes it) is extended."""
        for number, item in enumerate(sheet.items):
            if item.source is not None:
                continue  # its box stands in another cluster
            name = f"{prefix}_{number}"
            if item.inside is None or level >= self.depth:
                self._box(item, boxes, name)
                continue
            self.picture.body.append(f"\tsubgraph cluster_{name} {{\n")
            self.picture.attr(label=_label(item, 1))
            if item.expr is None:
                self.sheet(item.inside, boxes, name, level + 1)
            elif isinstance(item.expr, Apply):
                self._run(item.expr, item, boxes, name, level + 1)
            else:
                self._call(item, item.inside, boxes, name, level)
            self.picture.body.append("\t}\n")

    def _box(self, item: Item, boxes: dict[int, str], name: str) -> None:
        self.picture.node(name, _label(item, 2), fillcolor=COLOURS[kind(item)][0])
        here = {id(node) for expr in item.made for node in expr.outputs}
        operands = [node for expr in item.made for node in expr.inputs if id(node) not in here]
        self.edges.update(dict.fromkeys((boxes[id(node)], name) for node in operands if id(node) in boxes))
        boxes.update(dict.fromkeys(here, name))

    def _run(self, expr: Apply, item: Item, boxes: dict[int, str], name: str, level: int) -> None:
        """An op and the graphs that it runs: operands lead to their inputs too, their results lead to the op."""
        assert item.inside is not None
        self._box(item, boxes, name)
        for number, (opened, (_, body)) in enumerate(zip(item.inside.items, bodies_of(expr), strict=True)):
            below = f"{name}_{number}"
            if level >= self.depth or opened.inside is None:
                self.picture.node(below, _label(opened, 2), fillcolor=COLOURS[kind(opened)][0])
                self.edges[below, name] = None
                continue
            self.picture.body.append(f"\tsubgraph cluster_{below} {{\n")
            self.picture.attr(label=_label(opened, 1))
            inner: dict[int, str] = {}
            self.sheet(opened.inside, inner, below, level + 1)
            for operand, node in operands_of(expr, body):
                if id(operand) in boxes and id(node) in inner:
                    self.edges[boxes[id(operand)], inner[id(node)]] = None
            self.edges.update(dict.fromkeys((inner[id(n)], name) for n in body.graph.outputs if id(n) in inner))
            self.picture.body.append("\t}\n")

    def _call(self, item: Item, inside: Sheet, boxes: dict[int, str], name: str, level: int) -> None:
        """The call of a submodule: operands lead to the inputs of its graph, results come from its outputs."""
        expr = item.expr
        assert expr is not None
        inner: dict[int, str] = {}
        self.sheet(inside, inner, name, level + 1)
        for operand, node in zip(expr.inputs[1:], inside.graph.inputs[1:], strict=True):
            if id(operand) in boxes and id(node) in inner:
                self.edges[boxes[id(operand)], inner[id(node)]] = None
        for node, result in zip(expr.outputs, inside.graph.outputs, strict=True):
            if id(result) in inner:
                boxes[id(node)] = inner[id(result)]


def _label(item: Item, count: int) -> str:
    return _plain("\n".join(shortened(text, _LONGEST) for text in texts(item)[:count]))


def _plain(text: str) -> str:
    """A text in which Graphviz finds no markup: no backslashes, HTML-like labels or control characters."""
    return graphviz.nohtml(printable(text).replace("\\", "\\\\").replace("\n", "\\n"))
