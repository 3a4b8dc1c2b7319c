"""Batch norms in evaluation become part of the layers beside them: of modules, and of ops.

In graphs of ops this is a rule. A module may be read in several graphs, so that it is exchanged and its calls are
rewired in all of them or in none: that is no rule, only its patterns are of the common language.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import module as M
from megengine.dispatch import registry
from megengine.traced_module.editing.rewiring import set_inputs
from megengine.traced_module.ir.expr import CallMethod, GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign, remove_dead
from megengine.traced_module.ir.provenance import marked
from megengine.traced_module.passes.folding import folded_behind, folded_constants, folded_layer, layer_kind
from megengine.traced_module.passes.layer_uses import (
    Place,
    graphs_below,
    has_hooks,
    only_call,
    only_user,
    place_of,
    reads_of_places,
)
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import Pattern, any_, call, const, constant_value, either, match

# ---------------------------------------------------------------- ops

_CONVS = [name for name, op in registry.items() if op.weighted and "conv" in name]
_CONV = either(call(op, any_(), *[const() for _ in range(n)]) for op in _CONVS for n in (1, 2))
_NORM = call("batch_norm", _CONV, *[const() for _ in range(4)])


def _fold(m: Found) -> TensorNode:
    conv, norm, m.origin = m.expr(_CONV), m.root.expr, m[_CONV]
    fixed = [*conv.inputs[1:], *norm.inputs[1:]]
    made = m.graph._computed(folded_constants, conv.op, conv.attrs["groups"], norm.attrs["eps"], fixed)
    weight = m.constant(made[0], fixed[0].name, meta=fixed[0].meta)
    bias = m.constant(made[1], f"{conv.name}_bias", meta={})
    new = m.apply(conv.op, conv.inputs[0], weight, bias, attrs=conv.attrs, name=conv.name)
    m.names += [(weight, fixed[0].name), (new, conv.name)]
    return new


def _divides(m: Found) -> bool:
    """True if there is something to divide by; else the batch norm stays where it is seen."""
    norm = m.root.expr
    return bool(np.all(constant_value(norm.inputs[4]) + norm.attrs["eps"] > 0))


FOLD_BATCH_NORM = Rule("fold_batch_norm", _NORM, _fold, when=_divides)


def fold_batch_norm(graph: InternalGraph) -> bool:
    """Batch norm in evaluation after a convolution only it uses becomes part of weight and bias (float64, then cast).

    A weight shared with another convolution stays as it is there: the folded one gets its own constant. The convolution
    keeps its name.
    """
    return bool(rewrite(graph, [FOLD_BATCH_NORM]))


# ---------------------------------------------------------------- modules


def _is_plain(node: TensorNode) -> bool:
    """True for the call of a layer into which steps can be folded, or of a batch norm in evaluation, and no more."""
    layer = node.expr.inputs[0].owner
    if has_hooks(layer):
        return False
    if isinstance(layer, (M.BatchNorm1d, M.BatchNorm2d)):
        same = type(layer).forward in (M.BatchNorm1d.forward, M.BatchNorm2d.forward)
        return same and not layer.training and layer.track_running_stats
    # channels of a batch norm are axis 1, those of a linear layer the last one
    return layer_kind(type(layer)) is not None and (not isinstance(layer, M.Linear) or node.spec.ndim == 2)


def _norm(inner: Pattern) -> Pattern:
    return either(call(kind, inner) for kind in (M.BatchNorm1d, M.BatchNorm2d)).where(_is_plain)


def _sees_no_border(node: TensorNode) -> bool:
    """False for a convolution that pads with zeros, to which a step in front of it would not be applied."""
    layer = node.expr.inputs[0].owner
    return getattr(layer, "padding_mode", "zeros") != "zeros" or not np.any(layer.padding)


_LAYER = either(call(kind, any_()) for kind in (M.Conv2d, M.ConvTranspose2d, M.Linear)).where(_is_plain)
_BEHIND = _norm(_LAYER)
_BEFORE = _norm(any_())
_IN_FRONT = (call(M.Conv2d, _BEFORE).where(_sees_no_border) | call(M.Linear, _BEFORE)).where(_is_plain)


def _norm_behind(layer: CallMethod) -> CallMethod | None:
    """The batch norm that alone uses what a layer gives."""
    user = only_user(layer.output)
    found = None if user is None else match(_BEHIND, user.outputs[0])
    return user if found is not None and found.expr(_LAYER) is layer else None


def _norm_before(layer: CallMethod) -> CallMethod | None:
    """The batch norm whose result the layer alone uses."""
    found = match(_IN_FRONT, layer.output)
    return None if found is None or only_user(found[_BEFORE]) is not layer else found.expr(_BEFORE)


def fuse_conv_bn(graph: InternalGraph) -> bool:
    """Batch norms in evaluation behind Conv2d, ConvTranspose2d or Linear become part of them.

    The layer is replaced by one of its own (with a bias) under the same name. Where several graphs read it, all of
    them must have the same batch norm behind it; else, and where something else uses the layer or its result, it is
    left alone.
    """
    return _fold_all(graph, _norm_behind, folded_layer, _without_norm_behind)


def fuse_bn_conv(graph: InternalGraph) -> bool:
    """Batch norms in evaluation in front of Conv2d without a border of zeros, or Linear, become part of them."""
    return _fold_all(graph, _norm_before, folded_behind, _without_norm_before)


def _fold_all(graph: InternalGraph, norm_of: Any, folded: Any, rewire: Any) -> bool:
    own = graphs_below(graph)
    places = reads_of_places(graph)
    changed = False
    for each in reversed(own):
        for expr in reversed(each.exprs(recursive=False)):
            if not expr.in_graph or not isinstance(expr, GetAttr) or only_call(expr) is None:
                continue
            place = place_of(expr.output)
            found = _folds_everywhere(places, place, norm_of)
            if not found:
                continue
            del places[place]  # its layer is another one now
            layer, norm = (call.inputs[0].owner for call in found[0])
            with graph._edit():
                each.replace_module(expr.output, each._computed(folded, layer, norm))
                for layer_call, norm_call in found:
                    rewire(layer_call, norm_call)
            changed = True
    for each in own:
        remove_dead(each)
    return changed


def _folds_everywhere(
    places: dict[Place, list[GetAttr]], place: Place, norm_of: Any
) -> list[tuple[CallMethod, CallMethod]]:
    """(layer's call, batch norm's call) of each graph that reads a place; empty if they are not all alike."""
    found = []
    for read in places.get(place, ()):
        call = only_call(read)
        norm = None if call is None or len(call.outputs) != 1 else norm_of(call)
        if norm is None:
            return []
        found.append((call, norm))
    return found if len({id(norm.inputs[0].owner) for _, norm in found}) == 1 else []


def _without_norm_behind(layer_call: CallMethod, norm_call: CallMethod) -> None:
    graph = layer_call.top_graph
    layer_node, *values = layer_call.inputs
    name = layer_call.output.name
    with graph.insert_exprs():  # a new call, right behind what it needs: where MegEngine puts it
        made = layer_node(*values)
    graph.replace_node({norm_call.output: made})
    graph.erase(norm_call)
    graph.erase(layer_call)
    graph.rename(made, name)
    assign(graph, made.expr, "meta", marked(layer_call.meta, "FuseConvBn"))


def _without_norm_before(layer_call: CallMethod, norm_call: CallMethod) -> None:
    set_inputs(layer_call, [layer_call.inputs[0], norm_call.inputs[1]])
    layer_call.top_graph.erase(norm_call)
    assign(layer_call.top_graph, layer_call, "meta", marked(layer_call.meta, "FuseBnConv"))


FUSE_CONV_BN = Pass("FuseConvBn", fuse_conv_bn)
FUSE_BN_CONV = Pass("FuseBnConv", fuse_bn_conv)
