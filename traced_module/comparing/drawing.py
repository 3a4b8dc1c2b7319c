"""Two matched graphs in one picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from megengine.traced_module.comparing.changes import Change, joined, sentence
from megengine.traced_module.comparing.matching import Matching
from megengine.traced_module.ir.expr import Constant, Expr, GetAttr, is_call_module
from megengine.traced_module.pictures.boxes import lines, text_box, tooltip
from megengine.traced_module.pictures.drawing import edge_svg, measured, rows_of_columns
from megengine.traced_module.pictures.hierarchy import Item, Sheet, cells, shown


class Colour(NamedTuple):
    """How a kind of change is drawn."""

    fill: str
    stroke: str


_GREEN, _RED, _AMBER = Colour("#cdeccf", "#1a7f37"), Colour("#f8d0cf", "#b42318"), Colour("#ffe7ad", "#b76e00")
_BLUE = Colour("#dbe7f5", "#3b6ea5")
# of an expression with several changes, the first of these is shown
COLOURS = {"added": _GREEN, "removed": _RED, "changed": _AMBER, "rewired": _AMBER, "renamed": _BLUE, "moved": _BLUE}
_PLAIN, FAINT = Colour("#ffffff", "#5b6576"), "#8a94a6"
_Key = tuple[str, int]  # of a box: the graph, "a" or "b", and the number of the expression in it


def drawn(changes: Sequence[Change], where: str, matching: Matching) -> tuple[int, int, str]:
    """(width, height, SVG elements) of a pair of graphs: the second one and what is gone from the first."""
    picture = _Picture(changes, where, matching)
    index = {key: i for i, key in enumerate(picture.items)}
    edges = {(index[start], index[end]): style for (start, end), style in picture.edges().items()}
    layout = measured(Sheet("", matching.b.graph, list(picture.items.values()), list(edges)), 0)
    busy = rows_of_columns(layout)
    parts = [edge_svg(layout, busy, i, colour=c, dashed=d) for i, (c, d) in enumerate(edges.values())]
    for (side, _), cell in zip(picture.items, layout.cells, strict=True):
        expr = cell.item.made[0]
        colour, notes = picture.look(side, expr)
        notes.append(tooltip(expr))
        parts.append(text_box(cell.x, cell.y, lines(expr), notes, fill=colour.fill, stroke=colour.stroke))
    return round(layout.width), round(layout.height), "\n".join(parts)


class _Picture:
    def __init__(self, changes: Sequence[Change], where: str, matching: Matching) -> None:
        self.m, self.where = matching, where
        self.notes: dict[tuple[str, str], list[Change]] = {}
        self.paths = [(change.path, change) for change in changes if change.element in ("module", "parameter")]
        for change in changes:
            if change.where == where and change.element == "expr":
                names = [("a", change.old), ("b", change.new), *((side, n) for n in change.parts for side in "ab")]
                for side, name in names:
                    if name is not None:
                        self.notes.setdefault((side, name), []).append(change)
        drawn = {self._key(side, e): (side, e) for side in "ba" for e in self._shown(side)}
        places = cells((key, self._before(*drawn[key])) for key in drawn)
        self.items = {key: Item(e, (e,), row=places[key][0], column=places[key][1]) for key, (_, e) in drawn.items()}

    def _shown(self, side: str) -> Iterator[Expr]:
        """Expressions with a box: all of the second graph, and those of the first that are gone."""
        for expr in shown((self.m.b if side == "b" else self.m.a).graph):
            if side == "b" or self._key(side, expr)[0] == "a":
                yield expr

    def _key(self, side: str, expr: Expr) -> _Key:
        if side == "b":
            return "b", self.m.b.index[id(expr)]
        index = self.m.a.index[id(expr)]
        return ("b", self.m.to_b[index]) if self.m.to_b[index] >= 0 else ("a", index)

    def _before(self, side: str, expr: Expr) -> list[_Key]:
        return [self._key(side, n.expr) for n in expr.inputs]

    def edges(self) -> dict[tuple[_Key, _Key], tuple[str, bool]]:
        """(from, to) -> (colour, dashed): kept, new, and gone ones."""
        was, now = (self._edges(side) for side in "ab")
        kept = {pair: (FAINT if pair in was else _GREEN.stroke, False) for pair in now}
        return kept | {pair: (_RED.stroke, True) for pair in was if pair not in now}

    def _edges(self, side: str) -> dict[tuple[_Key, _Key], None]:
        exprs = shown((self.m.b if side == "b" else self.m.a).graph)
        pairs = ((start, self._key(side, expr)) for expr in exprs for start in self._before(side, expr))
        return dict.fromkeys(pair for pair in pairs if pair[0] in self.items and pair[1] in self.items)

    def look(self, side: str, expr: Expr) -> tuple[Colour, list[str]]:
        """The colour of the most important change of an expression, and a line for each of its changes."""
        # changes of the expression, of the constants it uses, and of the layer it calls
        notes = [c for n in expr.outputs for c in self.notes.get((side, n.name), ())]
        for node in expr.inputs:
            if isinstance(node.expr, (Constant, GetAttr)):
                of_node = self.notes.get((side, node.name), ())
                # a constant that is added or removed changes the call that uses it
                notes += [replace(c, kind="changed") if c.kind in ("added", "removed") else c for c in of_node]
        if is_call_module(expr) and isinstance(expr.inputs[0].expr, GetAttr):
            full = joined(self.where, expr.inputs[0].expr.name)
            notes += [c for at, c in self.paths if at == full or at.startswith(full + ".")]
        changes = list(dict.fromkeys(notes))
        kinds = {change.kind for change in changes}
        colour = next((colour for kind, colour in COLOURS.items() if kind in kinds), _PLAIN)
        return colour, [f"{change.kind}: {sentence(change)}" for change in changes]
