"""A page in which a graph is edited, and which saves the log of edits that `EditLog.replay` takes.

The page of `page.py`, with the graph as data beside its boxes: expressions, values by name, who uses what. Its script
(`edit.js` for the edits, `edit_ui.js` for what is seen) keeps a copy of the graph, checks each edit on it and writes
the primitive changes that the edit comes to. It edits the outermost graph; submodules are calls in it.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from megengine.core.errors import FileFormatError, GraphError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.attaching import places_read
from megengine.traced_module.editing.edit_log import FORMAT, LOG, VERSION
from megengine.traced_module.editing.edit_records import addresses_of
from megengine.traced_module.editing.excluding import every_call
from megengine.traced_module.formats.archives import WEIGHTS
from megengine.traced_module.formats.module_writing import ModuleWriter, node_out
from megengine.traced_module.formats.values import ValueWriter, class_path
from megengine.traced_module.ir.expr import Apply, Call, Expr, GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.passes.drop_identities import source_of
from megengine.traced_module.passes.layer_uses import graphs_below
from megengine.traced_module.pictures.page import DATA, embedded, page_data, viewer

SCRIPTS, STYLE = ("edit.js", "edit_ui.js"), "edit.css"


def to_edit_page(graph: InternalGraph, *, line: str = "") -> str:
    """A self-contained page in which an outermost graph, of calls or of ops, is edited.

    Args:
        graph: as the edits find it; the log fits copies of its model.
        line: the command that replays the log, which the page tells; FILE stands in it for the name of the log.

    Raises:
        GraphError: the graph is that of a submodule.

    Example:
        >>> Path("edit.html").write_text(to_edit_page(traced.graph), encoding="utf-8")  # doctest: +SKIP
    """
    if graph.top is not graph:
        raise GraphError(f"to_edit_page: {graph.qualname} is called by another graph; give the outermost one")
    data = page_data([graph], {id(expr): i for i, expr in enumerate(graph.exprs(recursive=False))})
    text = viewer(SCRIPTS)[0].replace("</style>", f"{(Path(__file__).parent / STYLE).read_text()}</style>", 1)
    return text.replace(DATA, embedded({**data, "edit": {**edit_data(graph), "line": line}}), 1)


def edit_data(graph: InternalGraph) -> dict[str, Any]:
    """What the script knows of a graph; values and expressions are known by their places in lists."""
    exprs = list(graph.exprs(recursive=False))
    values = [node for expr in exprs for node in expr.outputs]
    place = {id(node): i for i, node in enumerate(values)}
    addresses = {key: address for key, (address, _) in addresses_of(graph).items()}

    def places(nodes: Iterable[Any]) -> list[int]:
        return [place[id(node)] for node in nodes]

    return {
        "format": {"format": FORMAT, "version": VERSION, "log": LOG, "weights": WEIGHTS},
        "graph": addresses[id(graph)],
        "qualname": graph.qualname,
        "calls": graph.arguments is not None,
        "counts": list(graph.journal.counts),
        "keywords": keyword.kwlist,
        "values": [node_out(node) for node in values],
        "exprs": [
            {
                "kind": expr.kind,
                "text": expr.described(),
                "in": places(expr.inputs),
                "out": places(expr.outputs),
                "stays": expr.kept or (isinstance(expr, Apply) and "count" in expr.attrs),
                "same": _same(expr, place),
                "meta": _metas(expr, addresses),
            }
            for expr in exprs
        ],
        "inputs": places(graph.inputs),
        "outputs": places(graph.outputs),
        "attributes": _attributes(graph, exprs),
    }


def _same(expr: Expr, place: Mapping[int, int]) -> int | None:
    """The value that an expression only passes on; None for all others."""
    if len(expr.outputs) != 1 or not isinstance(expr, Apply | Call) or expr.kept:
        return None
    source = source_of(expr.outputs[0])
    return None if source is None else place.get(id(source))


def _metas(expr: Expr, addresses: Mapping[int, Any]) -> list[Any]:
    """[graph, name, meta] of an expression and of all that it runs: what a mark on it changes."""
    if not isinstance(expr, Apply | Call):
        return []
    writer = ModuleWriter(ValueWriter())
    metas = []
    for each in every_call(expr):
        try:
            name = each.outputs[0].name
            metas.append([addresses[id(each.top_graph)], name, writer.meta(each.meta, name)])
        except (FileFormatError, KeyError):  # a value that no log holds, a graph that is in no attribute
            return []
    return [] if writer.values.tensors or writer.values.layers else metas


def _attributes(graph: InternalGraph, exprs: Sequence[Expr]) -> list[dict[str, Any]]:
    """Layers, submodules and tensors of the module that this graph alone reads, with the expressions that do."""
    owner: Any = graph.owner
    if graph.arguments is None or owner is None:
        return []
    read: dict[str, list[int]] = {}
    for i, expr in enumerate(exprs):
        if isinstance(expr, GetAttr):
            for at, name in places_read(expr):
                if at is owner:
                    read.setdefault(name, []).append(i)
    others = [each for one in owner.graphs for each in graphs_below(one) if each is not graph]
    foreign = {
        name
        for each in others
        for expr in each.exprs(recursive=False)
        if isinstance(expr, GetAttr)
        for at, name in places_read(expr)
        if at is owner
    }
    held = object.__getattribute__(owner, "__dict__")
    return [
        {"name": name, "was": class_path(held[name]), "readers": readers}
        for name, readers in read.items()
        if name not in foreign and isinstance(held.get(name), (Module, Tensor))
    ]
