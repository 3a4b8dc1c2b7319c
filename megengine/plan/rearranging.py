"""Moves of elements that split axes, turn them and join them again, as channel and pixel shuffles do: one step."""

from __future__ import annotations

from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import any_, call

_X = any_()
_SPLIT = call("reshape", _X)
_TURNED = call("transpose", _SPLIT)


def _splits(whole: tuple[int, ...], parts: tuple[int, ...]) -> bool:
    """True if every axis of `whole` is the product of neighbouring ones of `parts`."""
    rest = list(parts)
    for length in whole:
        size = 1
        while rest and (size < length or rest[0] == 1):
            size *= rest.pop(0)
        if size != length:
            return False
    return not rest


def _is_shuffle(m: Found) -> bool:
    """Of pictures alone: the layout of other values is that of their elements before and behind."""
    x, parts, turned, y = m[_X].spec, m[_SPLIT].spec.shape, m[_TURNED].spec.shape, m.root.spec
    return x.ndim == y.ndim == 4 and 0 not in parts and _splits(x.shape, parts) and _splits(y.shape, turned)


def _shuffle(m: Found) -> TensorNode:
    attrs = {"parts": m[_SPLIT].spec.shape, "perm": m[_TURNED].expr.attrs["perm"], "shape": m.root.spec.shape}
    return m.apply("fused_rearrange", m[_X], attrs=attrs, name=m.root.name)


_RULE = Rule("rearrange", call("reshape", _TURNED), _shuffle, when=_is_shuffle)


def join_moves(graph: InternalGraph) -> bool:
    """Change in place; True if something changed."""
    return bool(rewrite(graph, (_RULE,)))
