"""DropIdentities: calls and ops that give what they get are left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import module as M
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.passes.layer_uses import has_hooks
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import Pattern, any_, call, const, either, match

_X = any_()


def _neutral(number: int) -> Pattern:
    """A pattern for a number; in a graph of ops, for a constant of one element."""

    def equal(value: Any) -> bool:
        if not isinstance(value, Node):
            return type(value) in (int, float) and value == number
        constant = value.expr.value.numpy() if isinstance(value.expr, Constant) and _of_ops(value) else None
        return constant is not None and constant.size == 1 and constant.item() == number

    return const().where(equal)


def _of_ops(node: Node) -> bool:
    return not node.graph.of_calls


_ZERO, _ONE = _neutral(0), _neutral(1)
_ARITHMETIC = either(
    (
        *(call("add", _X, _ZERO), call("sub", _X, _ZERO)),
        *(call("mul", _X, _ONE), call("div", _X, _ONE), call("pow", _X, _ONE)),
    )
)


def _others(node: TensorNode) -> list[Any]:
    """Attributes of an op, or arguments beside the tensor."""
    expr: Any = node.expr
    return list(expr.attrs.values()) if isinstance(expr, Apply) else list(expr.named_args.values())[1:]


def _in_order(node: TensorNode) -> bool:
    """True if axes are moved to where they are."""
    order: Any = _others(node)
    while len(order) == 1 and isinstance(order[0], (tuple, list)):
        order = order[0]
    return list(order) == list(range(len(order))) and (bool(order) or _of_ops(node))


def _takes_all(key: Any) -> bool:
    keys = key if isinstance(key, tuple) else (key,)
    return all(k is Ellipsis or k in (slice(None), slice(None, None, 1)) for k in keys)


def _pads_nothing(node: TensorNode) -> bool:
    return not np.any(np.asarray(_others(node)[0]))


_SAME_FOR_EVERY_SHAPE = either(
    (
        *(call(".astype", _X), call("cast", _X), call(".__pos__", _X), call("concat", _X)),
        *(call("transpose", _X).where(_in_order), call(".__getitem__", _X, key=_takes_all)),
        call("pad", _X).where(_pads_nothing),
    )
)
_SAME_FOR_THIS_SHAPE = either(
    (
        *(call("reshape", _X), call("broadcast_to", _X)),
        call("slice", _X, steps=lambda steps: all(s in (1, None) for s in steps)),
    )
)


def _only_passes_on(node: TensorNode) -> bool:
    layer = node.expr.inputs[0].owner
    return not has_hooks(layer) and not (isinstance(layer, M.Dropout) and layer.training)


_LAYERS = either(call(kind, _X) for kind in (M.Dropout, M.Identity)).where(_only_passes_on)


def _same(m: Found) -> bool:
    return m[_X].spec == m.root.spec


def _parameters(m: Found) -> list[Any]:
    """Neutral parameters: other weights may do something where these do nothing."""
    constants = [n.expr for n in m.root.expr.inputs if isinstance(n.expr, Constant) and n is not m[_X]]
    return [
        expr
        for expr in constants
        if expr.value.ndim or not str(expr.meta.get("parameter", expr.output.name)).startswith("const_tensor")
    ]


def _kept(m: Found) -> TensorNode:
    """The value; a parameter goes into the log of edits."""
    if m.graph.journal.recording:
        for expr in _parameters(m):
            m.graph.constant(expr.value.numpy().copy(), "neutral", before=m.root.expr)
    return m[_X]


RULES = (
    Rule("arithmetic", _ARITHMETIC, _kept, when=_same),
    Rule("same for every shape", _SAME_FOR_EVERY_SHAPE, lambda m: m[_X], when=_same),
    Rule("same for this shape", _SAME_FOR_THIS_SHAPE, lambda m: m[_X], when=lambda m: _of_ops(m.root) and _same(m)),
    Rule("layers", _LAYERS, lambda m: m[_X]),
)


def source_of(node: TensorNode) -> TensorNode | None:
    """The value that is given as it is under another name, whatever the weights are; None where something is done."""
    for rule in RULES:
        matched = match(rule.pattern, node)
        if matched is not None:
            found = Found(node.graph, matched)
            if (rule.when is None or rule.when(found)) and not _parameters(found):
                return found[_X]
    return None


def drop_identities(graph: InternalGraph) -> bool:
    """Calls and ops that give what they get are left out, if calls do so for inputs of every shape.

    Identity, Dropout in evaluation, `astype` to the dtype it has, `x + 0`, `x * 1`, `x[:]`, a transposition that
    exchanges nothing, `concat` of one tensor, `pad` by nothing; of ops, also a reshape, broadcast or slice that changes
    nothing.
    """
    return bool(rewrite(graph, RULES))


DROP_IDENTITIES = Pass("DropIdentities", drop_identities)
