"""FuseBnConv: batch norms in front of layers become part of them (see `norm_folding`)."""

from __future__ import annotations

import numpy as np

from megengine import module as M
from megengine.traced_module.editing.rewiring import set_inputs
from megengine.traced_module.ir.expr import CallMethod
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign
from megengine.traced_module.ir.provenance import left_in_float, marked
from megengine.traced_module.passes.folding import folded_behind
from megengine.traced_module.passes.layer_uses import only_user
from megengine.traced_module.passes.norm_folding import fold_norms, is_plain, norm
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.patterns import any_, call, match


def _sees_no_border(node: TensorNode) -> bool:
    """False for a convolution that pads with zeros, to which a batch norm in front of it would not be applied."""
    layer = node.expr.inputs[0].owner
    return getattr(layer, "padding_mode", "zeros") != "zeros" or not np.any(layer.padding)


_BEFORE = norm(any_())
_IN_FRONT = (call(M.Conv2d, _BEFORE).where(_sees_no_border) | call(M.Linear, _BEFORE)).where(is_plain)


def _norm_before(layer: CallMethod) -> CallMethod | None:
    """The batch norm whose result the layer alone uses."""
    matched = match(_IN_FRONT, layer.output)
    return None if matched is None or only_user(matched[_BEFORE]) is not layer else matched.expr(_BEFORE)


def _without_norm(layer_call: CallMethod, norm_call: CallMethod) -> None:
    set_inputs(layer_call, [layer_call.inputs[0], norm_call.inputs[1]])
    layer_call.top_graph.erase(norm_call)
    assign(layer_call.top_graph, layer_call, "meta", marked(left_in_float(layer_call.meta, [norm_call]), "FuseBnConv"))


def fuse_bn_conv(graph: InternalGraph) -> bool:
    """Batch norms in evaluation in front of Conv2d without a border of zeros, or Linear, become part of them."""
    return fold_norms(graph, _norm_before, folded_behind, _without_norm)


FUSE_BN_CONV = Pass("FuseBnConv", fuse_bn_conv)
