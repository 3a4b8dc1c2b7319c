"""What the passes share by which batch norms become part of layers, both modules.

No rule: a module may be read in several graphs, so that it is exchanged and its calls are rewired in all of them or in
none. Only the patterns are of the common language.
"""

from __future__ import annotations

from typing import Any

from megengine import module as M
from megengine.traced_module.ir.expr import CallMethod, GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes.folding import layer_kind
from megengine.traced_module.passes.layer_uses import (
    Place,
    graphs_below,
    has_hooks,
    only_call,
    place_of,
    reads_of_places,
)
from megengine.traced_module.patterns import Pattern, call, either


def is_plain(node: TensorNode) -> bool:
    """True for a plain call of a layer that can take in a batch norm, or of a batch norm in evaluation."""
    layer = node.expr.inputs[0].owner
    if has_hooks(layer):
        return False
    if isinstance(layer, (M.BatchNorm1d, M.BatchNorm2d)):
        same = type(layer).forward in (M.BatchNorm1d.forward, M.BatchNorm2d.forward)
        return same and not layer.training and layer.track_running_stats
    # channels of a batch norm are axis 1, those of a linear layer the last one
    return layer_kind(type(layer)) is not None and (not isinstance(layer, M.Linear) or node.spec.ndim == 2)


def norm(inner: Pattern) -> Pattern:
    return either(call(kind, inner) for kind in (M.BatchNorm1d, M.BatchNorm2d)).where(is_plain)


def fold_norms(graph: InternalGraph, norm_of: Any, folded: Any, rewire: Any) -> bool:
    """Fold batch norms of all graphs: `norm_of` finds that of a layer's call, `folded` makes the layer without it."""
    own = graphs_below(graph)
    places = reads_of_places(graph)
    changed = False
    for each in reversed(own):
        for expr in reversed(each.exprs(recursive=False)):
            if not expr.in_graph or not isinstance(expr, GetAttr) or only_call(expr) is None:
                continue
            place = place_of(expr.output)
            pairs = _folds_everywhere(places, place, norm_of)
            if not pairs:
                continue
            del places[place]  # its layer is another one now
            layer, norm = (call.inputs[0].owner for call in pairs[0])
            with graph.journal.transaction():
                each.replace_module(expr.output, each.journal.computed(folded, layer, norm))
                for layer_call, norm_call in pairs:
                    rewire(layer_call, norm_call)
            changed = True
    for each in own:
        remove_dead(each)
    return changed


def _folds_everywhere(
    places: dict[Place, list[GetAttr]], place: Place, norm_of: Any
) -> list[tuple[CallMethod, CallMethod]]:
    """(layer's call, batch norm's call) of each graph that reads a place; empty if they are not all alike."""
    pairs = []
    for read in places.get(place, ()):
        call = only_call(read)
        norm = None if call is None or len(call.outputs) != 1 else norm_of(call)
        if norm is None:
            return []
        pairs.append((call, norm))
    return pairs if len({id(norm.inputs[0].owner) for _, norm in pairs}) == 1 else []
