"""Batch norms in evaluation become part of the layers beside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from megengine import module as M
from megengine.kernels.memory import empty_like
from megengine.module import Module
from megengine.tensor import Parameter
from megengine.traced_module.editing.computed import computed_again
from megengine.traced_module.editing.rewiring import set_inputs
from megengine.traced_module.ir.expr import CallMethod, Expr, GetAttr, is_call_module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import assign, remove_dead
from megengine.traced_module.ir.provenance import marked
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

_BATCH_NORMS = (M.BatchNorm1d, M.BatchNorm2d)
# layers into which a batch norm can be folded -> axes of (groups, output channels) in their weight, without and with
# groups (then the weight has one axis more)
_OUTPUT_AXIS: dict[type[Module], tuple[int, int]] = {M.Conv2d: (0, 1), M.ConvTranspose2d: (1, 2), M.Linear: (0, 0)}
_INPUT_AXIS: dict[type[Module], tuple[int, int]] = {M.Conv2d: (1, 2), M.Linear: (1, 1)}


def layer_kind(kind: Any, kinds: Iterable[type[Module]]) -> type[Module] | None:
    """Which of `kinds` a class is or derives from with the same `forward`; None if it is none of them."""
    return next((k for k in kinds if issubclass(kind, k) and kind.forward is k.forward), None)


def _kind_of(layer: Module, kinds: Iterable[type[Module]]) -> type[Module]:
    kind = layer_kind(type(layer), kinds)
    assert kind is not None, layer
    return kind


# ---------------------------------------------------------------- arithmetic


def copied(layer: Module) -> Any:
    """A layer of its own with the same attributes; tensors are shared."""
    made = object.__new__(type(layer))
    made.__dict__.update(object.__getattribute__(layer, "__dict__"))
    return made


def _affine(norm: Any) -> tuple[np.ndarray, np.ndarray]:
    """(factor, offset) of a batch norm in float64: y = x * factor + offset, by channels."""
    mean, var = (np.asarray(t.numpy(), np.float64).reshape(-1) for t in (norm.running_mean, norm.running_var))
    factor = 1 / np.sqrt(var + norm.eps)
    shift = np.zeros_like(mean)
    if norm.affine:
        factor = factor * norm.weight.numpy().reshape(-1)
        shift = norm.bias.numpy().astype(np.float64).reshape(-1)
    return factor, shift - mean * factor


def _by_channel(layer: Any, values: np.ndarray, axes: dict[type[Module], tuple[int, int]]) -> np.ndarray:
    """Values of channels in the form in which they multiply the weight of a layer."""
    weight = layer.weight
    plain, grouped = axes[_kind_of(layer, axes)]
    shape = [1] * weight.ndim
    if getattr(layer, "groups", 1) > 1 and weight.ndim == 5:
        shape[0], shape[grouped] = layer.groups, -1
    else:
        shape[plain] = -1
    return values.reshape(shape)


def _product(weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Weights times factors, in memory that comes back: fresh pages would take longer than the arithmetic."""
    return np.multiply(weight, factor, out=empty_like(weight))


def _bias(layer: Any) -> np.ndarray | float:
    return 0.0 if layer.bias is None else layer.bias.numpy().astype(np.float64).reshape(-1)


def _with(layer: Any, weight: np.ndarray, bias: np.ndarray) -> Module:
    made = copied(layer)
    made.weight = Parameter._wrap(weight)
    made.bias = Parameter._wrap(bias if isinstance(layer, M.Linear) else bias.reshape(1, -1, 1, 1))
    return made


@computed_again
def scaled_layer(layer: Any, factor: Any, offset: Any) -> Module:
    """The layer whose result is `factor * result + offset`, by output channels; computed in float64."""
    weight, kind = layer.weight.numpy(), _kind_of(layer, _OUTPUT_AXIS)
    count = weight.shape[0] * weight.shape[1] if weight.ndim == 5 else weight.shape[_OUTPUT_AXIS[kind][0]]
    if kind is M.ConvTranspose2d and weight.ndim == 5:
        count = weight.shape[0] * weight.shape[2]
    factor, offset = (v if isinstance(v, np.ndarray) else np.full(count, v, np.float64) for v in (factor, offset))
    bias = (offset + _bias(layer) * factor).astype(weight.dtype)
    return _with(layer, _product(weight, _by_channel(layer, factor.astype(weight.dtype), _OUTPUT_AXIS)), bias)


@computed_again
def folded_layer(layer: Any, norm: Any) -> Module:
    """A convolution or linear layer followed by a batch norm (in evaluation), as one layer."""
    return scaled_layer(layer, *_affine(norm))


@computed_again
def folded_behind(layer: Any, norm: Any) -> Module:
    """A batch norm (in evaluation) followed by a layer that pads with nothing, as one layer."""
    factor, offset = _affine(norm)
    weight = layer.weight.numpy()
    per_weight = weight.astype(np.float64) * _by_channel(layer, offset, _INPUT_AXIS)
    if weight.ndim == 5:
        added = per_weight.sum(axis=(2, 3, 4)).reshape(-1)
    else:
        added = per_weight.reshape(weight.shape[0], -1).sum(axis=1)
    folded = _product(weight, _by_channel(layer, factor.astype(weight.dtype), _INPUT_AXIS))
    return _with(layer, folded, (_bias(layer) + added).astype(weight.dtype))


# ---------------------------------------------------------------- finding


def _is_norm(expr: Any) -> bool:
    """True for the call of a batch norm in evaluation that does nothing else."""
    if not is_call_module(expr) or layer_kind(expr.inputs[0].module_type, _BATCH_NORMS) is None:
        return False
    norm = expr.inputs[0].owner
    return len(expr.inputs) == 2 and not norm.training and norm.track_running_stats and not has_hooks(norm)


def _norm_behind(call: CallMethod) -> CallMethod | None:
    """The batch norm that alone uses what a layer gives."""
    kind = layer_kind(call.inputs[0].module_type, _OUTPUT_AXIS)
    if kind is None or len(call.inputs) != 2:
        return None
    if kind is M.Linear and call.output.spec.ndim != 2:
        return None  # channels of the batch norm are axis 1, those of the layer the last one
    user = only_user(call.output)
    return user if _is_norm(user) else None


def _norm_before(call: CallMethod) -> CallMethod | None:
    """The batch norm whose result the layer alone uses; there must be no border of zeros, which it would not see."""
    layer, kind = call.inputs[0].owner, layer_kind(call.inputs[0].module_type, _INPUT_AXIS)
    if kind is None or len(call.inputs) != 2:
        return None
    if kind is M.Linear and call.inputs[1].spec.ndim != 2:
        return None
    if kind is M.Conv2d and getattr(layer, "padding_mode", "zeros") == "zeros" and np.any(layer.padding):
        return None
    before = call.inputs[1].expr
    return before if _is_norm(before) and only_user(before.output) is call else None


# ---------------------------------------------------------------- passes


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
        norm = None if call is None else norm_of(call)
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
    _note(made.expr, layer_call, "FuseConvBn")


def _without_norm_before(layer_call: CallMethod, norm_call: CallMethod) -> None:
    graph = layer_call.top_graph
    set_inputs(layer_call, [layer_call.inputs[0], norm_call.inputs[1]])
    graph.erase(norm_call)
    _note(layer_call, layer_call, "FuseBnConv")


def _note(expr: Any, origin: Expr, name: str) -> None:
    assign(expr.top_graph, expr, "meta", marked(origin.meta, name))


FUSE_CONV_BN = Pass("FuseConvBn", fuse_conv_bn)
FUSE_BN_CONV = Pass("FuseBnConv", fuse_bn_conv)
