"""FuseConvBn: batch norms behind layers become part of them (see `norm_folding`)."""

from __future__ import annotations

from megengine import module as M
from megengine.traced_module.ir.expr import CallMethod
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import assign
from megengine.traced_module.ir.provenance import left_in_float, marked
from megengine.traced_module.passes.folding import folded_layer
from megengine.traced_module.passes.layer_uses import only_user
from megengine.traced_module.passes.norm_folding import fold_norms, is_plain, norm
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.patterns import any_, call, either, match

_LAYER = either(call(kind, any_()) for kind in (M.Conv2d, M.ConvTranspose2d, M.Linear)).where(is_plain)
_BEHIND = norm(_LAYER)


def _norm_behind(layer: CallMethod) -> CallMethod | None:
    """The batch norm that alone uses what a layer gives."""
    user = only_user(layer.output)
    matched = None if user is None else match(_BEHIND, user.outputs[0])
    return user if matched is not None and matched.expr(_LAYER) is layer else None


def _without_norm(layer_call: CallMethod, norm_call: CallMethod) -> None:
    graph = layer_call.top_graph
    layer_node, *values = layer_call.inputs
    name = layer_call.output.name
    with graph.insert_exprs():  # a new call, right behind what it needs: where MegEngine puts it
        result = layer_node(*values)
    graph.replace_node({norm_call.output: result})
    graph.erase(norm_call)
    graph.erase(layer_call)
    graph.rename(result, name)
    assign(graph, result.expr, "meta", marked(left_in_float(layer_call.meta, [norm_call]), "FuseConvBn"))


def fuse_conv_bn(graph: InternalGraph) -> bool:
    """Batch norms in evaluation behind Conv2d, ConvTranspose2d or Linear become part of them.

    The layer is replaced by one of its own (with a bias) under the same name. Where several graphs read it, all of
    them must have the same batch norm behind it; else, and where something else uses the layer or its result, it is
    left alone.
    """
    return fold_norms(graph, _norm_behind, folded_layer, _without_norm)


FUSE_CONV_BN = Pass("FuseConvBn", fuse_conv_bn)
