"""Two matched graphs in one picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from megengine.traced_module.comparing.changes import Change, sentence
from megengine.traced_module.comparing.matching import Matching
from megengine.traced_module.ir.expr import Constant, Expr, GetAttr, is_call_module
from megengine.traced_module.pictures.boxes import Box, box_svg, edge_svg, extent, place
from megengine.traced_module.pictures.hierarchy import shown


@dataclass(frozen=True, slots=True)
class Colour:
    """How a kind of change is drawn."""

    fill: str
    stroke: str


_GREEN, _RED, _AMBER = Colour("#cdeccf", "#1a7f37"), Colour("#f8d0cf", "#b42318"), Colour("#ffe7ad", "#b76e00")
_BLUE = Colour("#dbe7f5", "#3b6ea5")
COLOURS = {"added": _GREEN, "removed": _RED, "changed": _AMBER, "rewired": _AMBER, "renamed": _BLUE, "moved": _BLUE}
_PLAIN, FAINT = Colour("#ffffff", "#5b6576"), "#8a94a6"
_FIRST = ("added", "removed", "changed", "rewired", "renamed", "moved")  # what is shown of several


def drawn(changes: Sequence[Change], where: str, matching: Matching) -> tuple[int, int, str]:
    """(width, height, SVG elements) of a pair of graphs: the second one, with what is gone from the first beside it."""
    picture = _Picture(changes, where, matching)
    boxes = picture.boxes
    taken = {(box.row, box.column) for box in boxes.values()}
    edges = [
        edge_svg(boxes[start], boxes[end], taken, colour=colour, dashed=dashed)
        for (start, end), (colour, dashed) in picture.edges().items()
    ]
    parts = [picture.box(key, box) for key, box in boxes.items()]
    return (*extent(boxes.values()), "\n".join([*edges, *parts]))


_Key = tuple[str, int]  # of a box: the graph and the number of the expression in it


class _Picture:
    def __init__(self, changes: Sequence[Change], where: str, matching: Matching) -> None:
        self.m, self.where = matching, where
        self.notes: dict[tuple[str, str], list[Change]] = {}
        self.paths: list[tuple[str, Change]] = []
        for change in changes:
            if change.where == where and change.element == "expr":
                for side, name in (("a", change.old), ("b", change.new)):
                    if name is not None:
                        self.notes.setdefault((side, name), []).append(change)
                for name in change.parts:
                    for side in ("a", "b"):
                        self.notes.setdefault((side, name), []).append(change)
            elif change.element in ("module", "parameter"):
                self.paths.append((change.path, change))
        self.drawn_b = {id(e) for e in shown(matching.b.graph)}
        items = [(("b", j), e, self._before("b", e)) for j, e in self._shown("b")]
        items += [(("a", i), e, self._before("a", e)) for i, e in self._shown("a")]
        self.boxes: dict[_Key, Box] = place(items)

    def _shown(self, side: str) -> Iterable[tuple[int, Expr]]:
        """Drawn expressions: all of the second graph, and those of the first that are gone."""
        one = self.m.b if side == "b" else self.m.a
        for expr in shown(one.graph):
            index = one.index[id(expr)]
            if side == "b" or self.m.to_b[index] < 0:
                yield index, expr

    def _key(self, side: str, expr: Expr) -> _Key:
        """The box of an expression."""
        if side == "b":
            return ("b", self.m.b.index[id(expr)])
        index = self.m.a.index[id(expr)]
        return ("b", self.m.to_b[index]) if self.m.to_b[index] >= 0 else ("a", index)

    def _before(self, side: str, expr: Expr) -> list[_Key]:
        return [self._key(side, n.expr) for n in expr.inputs]

    def edges(self) -> dict[tuple[_Key, _Key], tuple[str, bool]]:
        """(from, to) -> (colour, dashed): kept, new, and gone ones."""
        now = self._edges("b")
        was = self._edges("a")
        found = {pair: (FAINT if pair in was else _GREEN.stroke, False) for pair in now}
        found.update({pair: (_RED.stroke, True) for pair in was if pair not in now})
        return found

    def _edges(self, side: str) -> dict[tuple[_Key, _Key], None]:
        one = self.m.b if side == "b" else self.m.a
        pairs = {}
        for expr in shown(one.graph):
            end = self._key(side, expr)
            for start in self._before(side, expr):
                if start in self.boxes and end in self.boxes:
                    pairs[start, end] = None
        return pairs

    def box(self, key: _Key, box: Box) -> str:
        """A box in the colour of its most important change, all of them in its tooltip."""
        changes = self._changes(key[0], box.expr)
        kinds = {change.kind for change in changes}
        colour = next((COLOURS[kind] for kind in _FIRST if kind in kinds), _PLAIN)
        notes = [f"{change.kind}: {sentence(change)}" for change in changes]
        return box_svg(box, fill=colour.fill, stroke=colour.stroke, notes=notes)

    def _changes(self, side: str, expr: Expr) -> list[Change]:
        """Changes of an expression, of the constants it uses, and of the layer it calls."""
        found = [c for n in expr.outputs for c in self.notes.get((side, n.name), ())]
        for node in expr.inputs:
            if isinstance(node.expr, (Constant, GetAttr)):
                found += [
                    c if c.kind not in ("added", "removed") else _as_change(c)
                    for c in self.notes.get((side, node.name), ())
                ]
        if is_call_module(expr) and isinstance(expr.inputs[0].expr, GetAttr):
            path = expr.inputs[0].expr.name
            full = f"{self.where}.{path}" if self.where else path
            found += [c for at, c in self.paths if at == full or at.startswith(full + ".")]
        return list(dict.fromkeys(found))


def _as_change(change: Change) -> Change:
    """What is new to a constant is a change to the call that uses it."""
    return replace(change, kind="changed")
