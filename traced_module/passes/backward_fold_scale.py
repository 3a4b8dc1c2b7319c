"""BackwardFoldScale: multiplications by numbers are done by the weights before them.

No rule: a factor goes backwards along any number of values to any number of layers, of which all change or none, and
only if no other graph reads them.
"""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine import module as M
from megengine.core.dtype import is_float
from megengine.traced_module.editing.computed import computed_again, constant_of
from megengine.traced_module.ir.expr import CallMethod, Expr, GetAttr, is_call_module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign, remove_dead
from megengine.traced_module.ir.provenance import marked
from megengine.traced_module.passes.affine_maps import Affine, affine_of, fits
from megengine.traced_module.passes.fold_constants import is_known
from megengine.traced_module.passes.folding import layer_kind, scaled_layer
from megengine.traced_module.passes.layer_uses import graphs_below, has_hooks, only_call, place_of, reads_of_places
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.pattern_targets import Target
from megengine.traced_module.patterns import any_, call, match

_X = any_().where(lambda node: not is_known(node))
_FACTOR = any_().where(lambda node: is_known(node) and node.spec.size == 1)
_SCALED = call("mul", _X, _FACTOR)


def _keys(*callees: Any) -> set[Any]:
    """What a call of one of these is; a class stands for its own modules only."""
    keys = {("module", one) for one in callees if isinstance(one, type)}
    return keys.union(*(Target(one).keys() or () for one in callees if not isinstance(one, type)))


# f(s * x) = s * f(x) for s > 0 ...
_POSITIVE = _keys(F.relu, F.leaky_relu, F.max_pool2d, F.abs, M.ReLU, M.LeakyReLU, M.MaxPool2d)
# ... and for every s
_LINEAR = _keys(
    *(F.avg_pool2d, F.adaptive_avg_pool2d, F.reshape, F.flatten, F.transpose, ".__getitem__", F.mean, F.sum, F.neg),
    *(F.expand_dims, F.squeeze, F.concat, F.stack, M.AvgPool2d, M.AdaptiveAvgPool2d, M.Identity, F.add, F.sub),
)


_SUMS = _keys(F.add, F.sub)


def _scales_along(expr: Expr, factor: float) -> bool:
    """True for a call whose result is scaled as its inputs are."""
    key = expr.callee
    if is_call_module(expr):
        layer = expr.inputs[0].owner
        key = ("module", None if has_hooks(layer) else type(layer))
    return key in _LINEAR or (factor > 0 and key in _POSITIVE)


def _targets(node: TensorNode, user: Expr, factor: float) -> dict[int, CallMethod] | None:
    """Calls of the layers that, all scaled, scale a value of which `user` is the only one; None if some are none."""
    calls: dict[int, CallMethod] = {}
    todo: list[tuple[Any, Expr]] = [(node, user)]
    while todo:
        at, by = todo.pop()
        expr, users = at.expr, {id(u) for u in at.users}
        if users != {id(by)} or any(at is n for n in at.graph.outputs) or len(expr.outputs) != 1:
            return None
        if is_call_module(expr) and layer_kind(expr.inputs[0].module_type):
            calls[id(expr)] = expr
            continue
        values = [n for n in expr.inputs if isinstance(n, TensorNode)]
        adds_number = expr.callee in _SUMS and len(expr.inputs) != 2
        if not values or adds_number or not _scales_along(expr, factor) or any(not is_float(n.dtype) for n in values):
            return None
        todo += [(n, expr) for n in values]
    return calls


@computed_again
def _scaled_by(layer: Any, factor: TensorNode) -> Any:
    return scaled_layer(layer, constant_of(factor).item(), 0.0)


def fold_scales(graph: InternalGraph) -> bool:
    """A multiplication by a number, or a tensor of one element that the module has, is done by weights before it.

    It goes backwards through what scales with its input (ReLU for positive numbers, pooling, reshapes, sums, concat)
    as long as nothing else uses the values, to Conv2d, ConvTranspose2d and Linear layers that are called once.
    """
    places = reads_of_places(graph)
    changed = False
    for each in graphs_below(graph):
        while _fold_one_scale(places, each):  # behind one that went another may stand
            changed = True
        remove_dead(each)
    return changed


def _factor_of(expr: Expr) -> tuple[Affine, float | TensorNode] | None:
    """A multiplication by a number, or by a tensor of one element that the module has: the map, and the factor."""
    matched = match(_SCALED, expr.outputs[0]) if expr.outputs else None
    if matched is not None:
        return Affine(matched[_X], constant_of(matched[_FACTOR]).item(), 0), matched[_FACTOR]
    affine = affine_of(expr)
    return None if affine is None or not affine.scaling or affine.additive else (affine, affine.scale)


def _fold_one_scale(places: Any, graph: InternalGraph) -> bool:
    for expr in reversed(graph.exprs(recursive=False)):
        affine, factor = _factor_of(expr) or (None, 0.0)
        if affine is None or not fits(expr.outputs[0], affine) or not affine.tame:
            continue
        calls = _targets(affine.x, expr, affine.scale)
        if not calls or not all(_called_once(places, one) for one in calls.values()):
            continue
        with graph.journal.transaction("BackwardFoldScale"):
            for one in calls.values():
                layer = one.inputs[0].owner
                by_node = isinstance(factor, TensorNode)
                scaled = (
                    graph.journal.computed(_scaled_by, layer, factor)
                    if by_node
                    else graph.journal.computed(scaled_layer, layer, factor, 0.0)
                )
                graph.replace_module(one.inputs[0], scaled)
                assign(graph, one, "meta", marked(one.meta, "BackwardFoldScale"))
            graph.replace_node({expr.outputs[0]: affine.x})
            graph.erase(expr)
        return True
    return False


def _called_once(places: Any, one: CallMethod) -> bool:
    read = one.inputs[0].expr
    if not isinstance(read, GetAttr) or only_call(read) is not one or len(one.inputs) != 2:
        return False
    return places.get(place_of(one.inputs[0]), ()) == [read]


BACKWARD_FOLD_SCALE = Pass("BackwardFoldScale", fold_scales)
