"""The difference between two models: what was added, removed, changed, rewired, renamed and moved.

Expressions, names, operands, arguments, values of constants, results and inputs of every graph are compared, and
classes, hyperparameters and tensors of every module. Ids, names of graphs, paths of values (`qualname`) and provenance
(`meta`) are not compared, because they are no part of what the model computes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megengine.core.collecting import collection_paused
from megengine.core.errors import FileFormatError, GraphError
from megengine.core.notebook import html_picture, html_text
from megengine.dispatch.refusal import kinds_named
from megengine.module import Module
from megengine.serialization import write_atomically
from megengine.tensor import Tensor
from megengine.traced_module.comparing.changes import KINDS, Change, joined
from megengine.traced_module.comparing.folding import folded
from megengine.traced_module.comparing.graphs import graph_changes, match_graphs
from megengine.traced_module.comparing.matching import Matching
from megengine.traced_module.comparing.report import counts, lines, to_html, to_svg
from megengine.traced_module.comparing.values import module_changes, tensor_changes
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode
from megengine.traced_module.ir.queries import children_of
from megengine.traced_module.traced import TracedModule

Model = TracedModule | InternalGraph
FORMAT, VERSION = "megengine-diff", 1


@dataclass(frozen=True)
class GraphDiff:
    """Differences between two models; false if there are none.

    Attributes:
        changes: every difference, by module, in the order of execution.
        matchings: (module path, matched expressions) of every pair of graphs, for pictures.
    """

    changes: tuple[Change, ...]
    matchings: tuple[tuple[str, Matching], ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return bool(self.changes)

    def of_kind(self, kind: str) -> tuple[Change, ...]:
        """Changes of one kind (see `Change`). Raises GraphError for an unknown one."""
        if kind not in KINDS:
            raise GraphError(f"of_kind: unknown kind {kind!r}; expected one of {', '.join(KINDS)}")
        return tuple(change for change in self.changes if change.kind == kind)

    def counts(self) -> dict[str, int]:
        return counts(self.changes)

    def to_text(self) -> str:
        """One line a change, by module; of many new names or shapes the first few. "no differences" for none."""
        return "\n".join(text for _, text in lines(self.changes))

    def to_json(self) -> dict[str, Any]:
        """Plain values: format, version, equal, counts by kind, and changes with the fields of `Change`.

        Empty fields are left out; a distance that is not finite is text ("inf").
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "equal": not self,
            "counts": self.counts(),
            "changes": [change.to_json() for change in self.changes],
        }

    def to_svg(self) -> str:
        """A picture of both graphs in one: added green, removed red, changed amber; graphs without changes left out."""
        return to_svg(self.changes, self.matchings)

    def to_html(self) -> str:
        """A page with the list of changes and the picture; it loads nothing and runs nothing."""
        return to_html(self.changes, self.matchings)

    def to_file(self, path: str | Path) -> None:
        """Write a .svg picture, a .html page, .json or .txt; the file is replaced in one step.

        Raises FileFormatError for another suffix.
        """
        write_atomically(path, self.content(Path(path).suffix).encode())

    def content(self, suffix: str) -> str:
        """The content of a file with this suffix. Raises FileFormatError for an unknown one."""
        kinds = {".svg": self.to_svg, ".html": self.to_html, ".txt": lambda: self.to_text() + "\n"}
        kinds[".json"] = lambda: json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"
        if suffix not in kinds:
            raise FileFormatError(f"a difference cannot be written as {suffix!r}; expected {', '.join(kinds)}")
        return kinds[suffix]()

    __str__ = to_text
    _repr_svg_ = to_svg  # for notebooks that show pictures only

    def _repr_html_(self) -> str:
        return html_text(self.to_text()) + (html_picture(self.to_svg()) if self else "")


@kinds_named
def diff(a: Model, b: Model) -> GraphDiff:
    """The changes that lead from `a` to `b`.

    Args:
        a, b: two traced modules or two graphs, both of calls or both of ops. Modules below a graph of calls are
            compared too.

    Raises:
        GraphError: one is a graph of calls and the other one of ops, or they are of different kinds.

    Example:
        >>> print(diff(traced, optimize(traced)))  # doctest: +SKIP
    """
    for model in (a, b):
        if not isinstance(model, (TracedModule, InternalGraph)):
            raise GraphError(f"diff: expected a TracedModule or an InternalGraph, got {type(model).__name__}")
    if isinstance(a, InternalGraph) != isinstance(b, InternalGraph):
        raise GraphError("diff: one is a TracedModule, the other a graph; give two of one kind (`traced.graph`)")
    levels = [_level(model) for model in (a, b)]
    if levels[0] != levels[1] and None not in levels:
        raise GraphError(f"diff: one is a graph of {levels[0]}, the other of {levels[1]}; `lower` the one of calls")
    comparison = _Comparison()
    with collection_paused():
        if isinstance(a, TracedModule) or isinstance(b, TracedModule):
            comparison.modules(a, b)
        elif isinstance(a.owner, TracedModule) and isinstance(b.owner, TracedModule):
            comparison.modules(a.owner, b.owner, graphs=[(a, b)])
        else:
            comparison.graphs("", "", [(a, b)])
        return GraphDiff(tuple(folded(comparison.changes, comparison.matchings)), tuple(comparison.matchings))


def _level(model: Model) -> str | None:
    graphs = model.graphs if isinstance(model, TracedModule) else (model,)
    if not graphs:
        return None
    return "calls" if graphs[0].inputs and isinstance(graphs[0].inputs[0], ModuleNode) else "ops"


class _Comparison:
    """Walks two models side by side, from the outermost module inwards."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.matchings: list[tuple[str, Matching]] = []
        self.renamed: dict[str, str] = {}  # path of a submodule -> its path in the second model
        self.seen: set[tuple[int, int]] = set()

    def modules(self, a: Any, b: Any, graphs: list[tuple[InternalGraph, InternalGraph]] | None = None) -> None:
        """Two modules and all below them. `graphs` are the pairs of the outermost one, if not all of them."""
        todo = [("", "", a, b, graphs)]
        while todo:
            path, other, a, b, graphs = todo.pop()
            if (id(a), id(b)) in self.seen:
                continue
            self.seen.add((id(a), id(b)))
            if a is b and graphs is None:
                continue
            parent, _, name = path.rpartition(".")
            new = other.rpartition(".")[2]
            if isinstance(a, Tensor) or isinstance(b, Tensor):
                place: dict[str, Any] = {"element": "parameter", "where": parent, "old": name, "new": new}
                if type(a) is not type(b):
                    before, after = type(a).__name__, type(b).__name__
                    self.changes.append(Change(kind="changed", what="class", **place, before=before, after=after))
                if isinstance(a, Tensor) and isinstance(b, Tensor):
                    self.changes += [Change(kind="changed", **place, **change) for change in tensor_changes(a, b)]
                continue
            self.changes += module_changes(a, b, parent, name, new)
            below = self._children(a, b, path, other)
            if isinstance(a, TracedModule) and isinstance(b, TracedModule):
                self.graphs(path, other, self._graph_pairs(a, b, path) if graphs is None else graphs)
            todo += [(*names, x, y, None) for names, x, y in reversed(below)]

    def _children(self, a: Any, b: Any, path: str, other: str) -> list[tuple[tuple[str, str], Any, Any]]:
        """Submodules and tensors of both, by name; those of one side only are reported."""
        left, right = children_of(a), children_of(b)
        pairs = [(name, name) for name in left if name in right]
        gone, new = [n for n in left if n not in right], [n for n in right if n not in left]
        for old, now in _same_under_another_name(left, right, gone, new):
            pairs.append((old, now))
            gone.remove(old)
            new.remove(now)
            self.renamed[joined(path, old)] = joined(other, now)
            self.changes.append(Change(kind="renamed", element=_element(left[old]), where=path, old=old, new=now))
        for name in gone:
            text = _described(left[name])
            self.changes.append(Change(kind="removed", element=_element(left[name]), where=path, old=name, before=text))
        for name in new:
            text = _described(right[name])
            self.changes.append(Change(kind="added", element=_element(right[name]), where=path, new=name, after=text))
        return [((joined(path, old), joined(other, now)), left[old], right[now]) for old, now in pairs]

    def _graph_pairs(self, a: TracedModule, b: TracedModule, path: str) -> list[tuple[InternalGraph, InternalGraph]]:
        """Graphs for the same nesting of arguments; the others in their order, if each has a partner."""
        pairs = [(graph, b._graphs[key]) for key, graph in a._graphs.items() if key in b._graphs]
        left = [g for key, g in a._graphs.items() if key not in b._graphs]
        right = [g for key, g in b._graphs.items() if key not in a._graphs]
        pairs += zip(left, right, strict=False)
        for graph in left[len(right) :]:
            self.changes.append(Change(kind="removed", element="graph", where=path, old=graph.name))
        for graph in right[len(left) :]:
            self.changes.append(Change(kind="added", element="graph", where=path, new=graph.name))
        return pairs

    def graphs(self, path: str, other: str, pairs: list[tuple[InternalGraph, InternalGraph]]) -> None:
        """Pairs of graphs of one module, which has these paths in the two models."""
        renamed = functools.partial(self._now, path, other)
        for a, b in pairs:
            if a is not b:
                matching = match_graphs(a, b, renamed)
                self.changes += graph_changes(matching, path, renamed)
                self.matchings.append((path, matching))

    def _now(self, path: str, other: str, attribute: str) -> str:
        """Path, below the module, that an attribute of the first model has in the second."""
        parts = attribute.split(".") if self.renamed else []
        for length in range(len(parts), 0, -1):
            now = self.renamed.get(joined(path, ".".join(parts[:length])))
            if now is not None:
                return ".".join((now[len(other) + 1 :] if other else now, *parts[length:]))
        return attribute


def _same_under_another_name(
    left: dict[str, Any], right: dict[str, Any], gone: list[str], new: list[str]
) -> Iterator[tuple[str, str]]:
    waiting: dict[Any, list[str]] = {}
    for name in new:
        waiting.setdefault(_outline(right[name]), []).append(name)
    for name in list(gone):
        for other in waiting.get(_outline(left[name]), [])[:1]:
            comparison = _Comparison()
            comparison.modules(left[name], right[other])
            if not comparison.changes:
                waiting[_outline(left[name])].remove(other)
                yield name, other


def _outline(child: Any) -> Any:
    if isinstance(child, Tensor):
        return (type(child), child.spec)
    return (type(child), tuple((name, t.spec) for name, t in child.named_tensors()))


def _element(child: Any) -> str:
    return "module" if isinstance(child, Module) else "parameter"


def _described(child: Any) -> str:
    return str(child.spec) if isinstance(child, Tensor) else type(child).__name__
