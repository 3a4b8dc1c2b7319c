"""Batch norms and scales that became part of a neighbouring layer: one change of the layer instead of many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from megengine import module as M
from megengine.traced_module.comparing.changes import Change, joined
from megengine.traced_module.comparing.matching import Matching
from megengine.traced_module.ir.expr import Apply, Constant, Expr, GetAttr, is_call_module
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.affine_maps import NORM, affine_of, form_of
from megengine.traced_module.pictures.boxes import called_name


def folded(changes: list[Change], matchings: Sequence[tuple[str, Matching]]) -> list[Change]:
    """The changes, where one replaces those of a removed scale and of the weights of the layer beside it.

    The same is done with the two graphs exchanged, for scales that were split off a layer.
    """
    changes = _folded(changes, matchings)
    turned = _folded([c.reversed() for c in changes], [(where, m.exchanged()) for where, m in matchings])
    return [change.reversed() for change in turned]


def _folded(changes: list[Change], matchings: Sequence[tuple[str, Matching]]) -> list[Change]:
    """The changes, those of a layer as one, in the place of the first removed scale."""
    inside: dict[str, list[Change]] = defaultdict(list)  # path of a module -> changes of its graphs
    below: dict[str, list[Change]] = defaultdict(list)  # path of a layer -> changes of it
    for change in changes:
        if change.element in ("module", "parameter"):
            below[change.where if change.element == "parameter" else change.path].append(change)
        else:
            inside[change.where].append(change)
    place: dict[int, Change] = {}
    dropped: set[int] = set()
    for where, matching in matchings:
        if any(change.kind == "removed" for change in inside[where]):
            _Graph(inside[where], below, where, matching).fold(place, dropped)
    return [place.get(id(c), c) for c in changes if id(c) in place or id(c) not in dropped]


class _Graph:
    """Changes of one pair of graphs, by the names of their expressions."""

    def __init__(self, changes: list[Change], below: dict[str, list[Change]], where: str, matching: Matching) -> None:
        self.below, self.where, self.m = below, where, matching
        self.old: dict[str | None, list[Change]] = defaultdict(list)
        self.new: dict[str | None, list[Change]] = defaultdict(list)
        self.outputs = [change for change in changes if change.element == "output"]
        for change in changes:
            if change.element == "expr":
                self.old[change.old].append(change)
                self.new[change.new].append(change)

    def fold(self, place: dict[int, Change], dropped: set[int]) -> None:
        """Add the one change of each layer, by the id of the change that it replaces, and the ids that are dropped."""
        gone: dict[int, list[int]] = defaultdict(list)  # a layer -> what is folded into it
        for i, expr in enumerate(self.m.a.exprs):
            if self.m.to_b[i] < 0 and _scales(expr):
                host = self._host(expr)
                if host is not None:
                    gone[host].append(i)
        for host, scales in gone.items():
            parts = [self.m.a.exprs[i] for i in scales]
            dropped |= {id(c) for c in self._absorbed(host, parts)}
            place[id(self.old[parts[0].name][0])] = self._one(host, parts)

    def _host(self, scale: Expr) -> int | None:
        """The layer with changed weights in front of a removed scale, or the only user of it."""
        before = _value(scale)
        while before is not None and self.m.to_b[self.m.a.index[id(before.expr)]] < 0:
            before = _value(before.expr) if _scales(before.expr) else None
        behind = {id(e): e for e in scale.output.users}
        near = [before.expr] if before is not None else []
        for expr in (*near, *(behind.values() if len(behind) == 1 else ())):
            i = self.m.a.index[id(expr)]
            if self.m.to_b[i] >= 0 and any(c.what == "values" for c in self._weights(i)):
                return i
        return None

    def _weights(self, i: int) -> Iterator[Change]:
        """Changes of the tensors that an expression uses."""
        a, b = self.m.a.exprs[i], self.m.b.exprs[self.m.to_b[i]]
        if is_call_module(a) and isinstance(a.inputs[0].expr, GetAttr):
            yield from self.below[joined(self.where, a.inputs[0].expr.name)]
        if isinstance(a, Apply) and isinstance(b, Apply):
            for expr, named in ((a, self.old), (b, self.new)):
                for node in expr.inputs:
                    if isinstance(node.expr, Constant) and len(node.users) == 1:
                        yield from named[node.name]
            yield from (c for c in self.old[a.name] if "(not given)" in (c.before, c.after))

    def _absorbed(self, host: int, parts: Sequence[Expr]) -> Iterator[Change]:
        yield from self._weights(host)
        for expr in parts:
            name = expr.name
            yield from self.old[name]
            for node in expr.inputs:
                if isinstance(node.expr, (Constant, GetAttr)) and len(node.users) == 1:
                    yield from self.old[node.name]
                if isinstance(node.expr, GetAttr):
                    yield from (c for c in self.below[joined(self.where, node.expr.name)] if c.kind == "removed")
            for user in expr.output.users:
                yield from (c for c in self.old[user.name] if c.kind == "rewired" and c.before == name)
            yield from (c for c in self.outputs if c.kind == "rewired" and c.before == name)

    def _one(self, host: int, parts: Sequence[Expr]) -> Change:
        a, b = self.m.a.exprs[host], self.m.b.exprs[self.m.to_b[host]]
        weight = b.inputs[1].name if isinstance(b, Apply) and len(b.inputs) > 1 else "weight"
        changed = [c for c in self._weights(host) if c.distance is not None]
        most = max(changed, key=lambda c: (c.new == weight, c.norm or 0.0))
        in_order = sorted((a, *parts), key=lambda e: e.position)
        return Change(
            kind="changed",
            where=self.where,
            old=a.name,
            new=b.name,
            what="folded",
            before=", ".join(f"{called_name(e)} {e.name}" for e in in_order),
            after=f"{called_name(b)} {b.name}",
            distance=most.distance,
            relative=most.relative,
            norm=most.norm,
            parts=tuple(e.name for e in parts),
        )


def _scales(expr: Expr) -> bool:
    """True for a batch norm, and for arithmetic with numbers or constants."""
    if _value(expr) is None:
        return False
    if isinstance(expr, Apply):
        form = form_of(expr)
        return form is not None and (form.kind == NORM or not form.shifts)
    return any(is_call_module(expr, kind) for kind in (M.BatchNorm1d, M.BatchNorm2d)) or affine_of(expr) is not None


def _value(expr: Expr) -> Any:
    """The only operand that is no constant; None if there are several."""
    nodes = [n for n in expr.inputs if isinstance(n, TensorNode) and not isinstance(n.expr, (Constant, GetAttr))]
    return nodes[0] if len(nodes) == 1 and len(expr.outputs) == 1 else None
