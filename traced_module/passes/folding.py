"""The one arithmetic by which `scale * x + shift` by channels becomes part of the weight and bias of a layer beside it.

It serves convolutions, transposed convolutions and linear layers, as modules and as ops. Logs of edits name the
functions below it (`computed_again`), which therefore keep their names and arguments.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine import module as M
from megengine.core.dtype import storage_of
from megengine.dispatch import get_op
from megengine.kernels.memory import empty_like
from megengine.module import Module
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.editing.computed import computed_again, constant_of
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.affine_maps import NORM, composed, norm_map


def absorbed(
    weight: np.ndarray,
    bias: np.ndarray | None,
    affine: tuple[Any, Any],
    *,
    groups: int = 1,
    output_first: bool = True,
    in_front: bool = False,
    fast: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of a layer with an affine map behind or in front of it: computed in float64, then cast.

    Args:
        weight: of all groups together, or with an axis of groups; channels stand before the window.
        bias: one value an output channel; None for none.
        affine: (scale, shift): one value a channel, or one for all. Without a shift (None), that stays in front.
        groups: of the layer.
        output_first: output channels are the first axis of channels in a group.
        in_front: the map is in front of the layer.
        fast: round the scale to the weight's dtype first, which takes a seventh of the time.
    """
    window = math.prod(weight.shape[-2:]) if weight.ndim > 2 else 1
    *outer, inner = weight.shape[:-2] if weight.ndim > 2 else weight.shape
    view = weight.reshape(groups, math.prod(outer) // groups, inner, window)
    first = output_first != in_front  # the map's channels are the first axis in a group
    shape = (groups, view.shape[1], 1, 1) if first else (groups, 1, inner, 1)
    channels = math.prod(shape)
    scale, shift = (np.broadcast_to(0.0 if v is None else v, channels) for v in affine)
    factor = scale.astype(weight.dtype) if fast else scale
    # in memory that comes back: fresh pages would take longer than the arithmetic
    folded = np.multiply(view, factor.reshape(shape), out=empty_like(view), casting="same_kind")
    offset = np.zeros(groups * view.shape[1 if output_first else 2])
    if bias is not None:
        offset = np.asarray(bias, np.float64).reshape(-1)
    if not in_front:
        offset = offset * scale + shift
    elif affine[1] is not None:
        seen = view.astype(np.float64) * shift.reshape(shape)
        offset = offset + seen.sum(axis=(1 if first else 2, 3)).reshape(-1)
    return folded.reshape(weight.shape), offset.astype(weight.dtype)


# ---------------------------------------------------------------- layers as modules

# the layers -> whether output channels come first in a group
LAYERS: dict[type[Module], bool] = {M.Conv2d: True, M.ConvTranspose2d: False, M.Linear: True}


def layer_kind(kind: type) -> type[Module] | None:
    """Which of `LAYERS` a class is or derives from with the same `forward`; None if it is none of them."""
    return next((k for k in LAYERS if issubclass(kind, k) and kind.forward is k.forward), None)


def _with_map(layer: Any, affine: tuple[Any, Any], *, in_front: bool = False) -> Module:
    """A layer of its own with the same attributes and other weights."""
    kind = layer_kind(type(layer))
    assert kind is not None, layer
    bias = None if layer.bias is None else layer.bias.numpy()
    settings = {"groups": getattr(layer, "groups", 1), "output_first": LAYERS[kind], "in_front": in_front}
    weight, bias = absorbed(layer.weight.numpy(), bias, affine, **settings, fast=True)
    mapped = object.__new__(type(layer))
    mapped.__dict__.update(object.__getattribute__(layer, "__dict__"))
    mapped.weight = Parameter._wrap(weight, device=layer.weight.spec.device)
    bias = bias if kind is M.Linear else bias.reshape(1, -1, 1, 1)
    mapped.bias = Parameter._wrap(bias, device=layer.weight.spec.device)
    return mapped


def _norm_of(norm: Any) -> tuple[Any, Any]:
    """(scale, shift) of a batch norm in evaluation."""
    tensors = (norm.weight, norm.bias) if norm.affine else (None, None)
    gamma, beta, mean, variance = (
        default if t is None else t.numpy().astype(np.float64).reshape(-1)
        for t, default in zip((*tensors, norm.running_mean, norm.running_var), (1.0, 0.0, 0.0, 1.0), strict=True)
    )
    return norm_map(gamma, beta, mean, variance, norm.eps)


@computed_again
def scaled_layer(layer: Any, factor: Any, offset: Any) -> Module:
    """The layer whose result is `factor * result + offset`, by output channels."""
    return _with_map(layer, (np.asarray(factor, np.float64), np.asarray(offset, np.float64)))


@computed_again
def folded_layer(layer: Any, norm: Any) -> Module:
    """A layer followed by a batch norm (in evaluation), as one layer."""
    return _with_map(layer, _norm_of(norm))


@computed_again
def folded_behind(layer: Any, norm: Any) -> Module:
    """A batch norm (in evaluation) followed by a layer that pads with nothing, as one layer."""
    return _with_map(layer, _norm_of(norm), in_front=True)


# ---------------------------------------------------------------- layers as ops


def output_first(op: str, transpose_b: bool = False) -> bool:
    """True if output channels come first in a group of the weight of an op."""
    return transpose_b if get_op(op).rows else not get_op(op).transposed


@computed_again
def folded_constants(op: str, groups: int, eps: float, fixed: list[TensorNode]) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution followed by a batch norm, of which the constants are given."""
    settings = [groups, False, 4, 1, fixed[-1].spec.size]
    weight, bias, _ = affine_layer(op, settings, fixed[:-4], [[NORM, eps, fixed[-4:]]], "out", False)
    return weight, bias


@computed_again
def affine_layer(
    op: str, settings: list[Any], weights: list[TensorNode], recipe: list[Any], side: str, keeps_shift: bool
) -> tuple[Tensor, ...]:
    """Weight and bias of a layer with affine maps in front of it ("in") or behind it ("out").

    Where the shift of maps in front is kept, the third result is what is to be added in front, before the scale.
    """
    groups, transposed, ndim, axis, channels = settings
    arrays = [constant_of(node).numpy() for node in weights]
    scale_and_shift = composed(recipe, ndim, axis, channels)
    assert scale_and_shift is not None
    scale, shift = scale_and_shift
    folded = absorbed(
        arrays[0],
        arrays[1] if len(arrays) > 1 else None,
        (scale, None if keeps_shift else shift),
        groups=groups,
        output_first=output_first(op, transposed),
        in_front=side == "in",
    )
    dtype = storage_of(weights[0].dtype)
    before = (shift / scale if side == "in" else shift).reshape(-1, *[1] * (ndim - 1 - axis)).astype(dtype)
    place = weights[0].spec.device
    return tuple(Tensor._wrap(np.ascontiguousarray(v), device=place) for v in (*folded, before))
