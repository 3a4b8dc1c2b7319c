"""Batch normalisation folded into the convolution or linear layer before it."""

from __future__ import annotations

import copy
from typing import Any

from megengine import functional as F
from megengine import module as M
from megengine.core.errors import OptionError
from megengine.tensor import Parameter, Tensor

__all__ = ["fold_weight_bias", "fuse_conv_bn_relu_module", "fuse_linear_bn_relu_module"]

# layer -> with ReLU, with batch norm, with both
_FORMS: dict[type, tuple[type, type, type]] = {
    M.Conv2d: (M.ConvRelu2d, M.ConvBn2d, M.ConvBnRelu2d),
    M.ConvTranspose2d: (M.ConvTransposeRelu2d, M.ConvTransposeBn2d, M.ConvTransposeBnRelu2d),
    M.Linear: (M.LinearRelu, M.LinearBn1d, M.LinearBnRelu1d),
}


def fold_weight_bias(
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    bn_mean: Tensor,
    bn_var: Tensor,
    eps: float = 1e-5,
    transpose: bool = False,
) -> tuple[Tensor, Tensor]:
    """Weight and bias of one layer that computes the layer and its batch norm (in evaluation mode).

    weight is [out, in, ...] or grouped [groups, out / groups, in / groups, ...], with `transpose` the out and in axes
    change places; the statistics have `out` elements each. The bias comes in the shape of bn_mean.
    """
    factor = 1 / F.sqrt(bn_var + eps)
    factor = factor if gamma is None else factor * gamma.reshape(bn_var.shape)
    grouped = weight.ndim == 5
    shape = [1] * weight.ndim
    shape[(1 if transpose else 0) + grouped] = -1
    if grouped:
        shape[0] = weight.shape[0]
    start = 0 if bias is None else bias.reshape(bn_mean.shape)
    folded = (start - bn_mean) * factor
    return weight * factor.reshape(*shape), folded if beta is None else folded + beta.reshape(bn_mean.shape)


def _fused(layer: Any, bn: Any, relu: Any) -> Any:
    if type(layer) not in _FORMS or (bn is None and relu is None):
        raise OptionError(
            f"bn_fusion: no layer computes {type(layer).__name__} with bn {type(bn).__name__} and relu "
            f"{type(relu).__name__}; expected Conv2d, ConvTranspose2d or Linear, and a batch norm, a ReLU, or both"
        )
    for part, kinds in ((bn, (M.BatchNorm1d, M.BatchNorm2d)), (relu, (M.ReLU,))):
        if part is not None and not isinstance(part, kinds):
            raise OptionError(f"bn_fusion: got {part!r}; expected {' or '.join(k.__name__ for k in kinds)} or None")
    forms = _FORMS[type(layer)]
    kind = forms[2] if bn is not None and relu is not None else forms[1] if bn is not None else forms[0]
    if bn is not None and layer.training:
        # the batch norm is still trained, so the layer keeps it
        fused: Any = object.__new__(kind)
        M.Module.__init__(fused)
        name = "linear" if isinstance(layer, M.Linear) else "conv" if type(layer) is M.Conv2d else "conv_transpose2d"
        setattr(fused, name, copy.deepcopy(layer))
        fused.bn = copy.deepcopy(bn)
        fused.train(layer.training)
        return fused
    fused = copy.deepcopy(layer)
    fused.__class__ = _FORMS[type(layer)][0] if relu is not None else type(layer)
    if bn is not None:
        transposed = isinstance(layer, M.ConvTranspose2d)
        weight, bias = fold_weight_bias(
            layer.weight, layer.bias, bn.weight, bn.bias, bn.running_mean, bn.running_var, bn.eps, transposed
        )
        fused.weight = Parameter(weight)
        fused.bias = Parameter(bias.reshape(-1) if isinstance(layer, M.Linear) else bias)
    return fused


def fuse_conv_bn_relu_module(conv: Any, bn: Any, relu: Any) -> Any:
    """One layer that computes a Conv2d or ConvTranspose2d, a batch norm (or None) and a ReLU (or None).

    In evaluation mode the batch norm is folded into weight and bias; in training mode it stays a part of the result.
    The arguments are not changed. Raises OptionError for layers that have no common form.
    """
    return _fused(conv, bn, relu)


def fuse_linear_bn_relu_module(linear: Any, bn: Any, relu: Any) -> Any:
    """As `fuse_conv_bn_relu_module`, for Linear and BatchNorm1d."""
    return _fused(linear, bn, relu)
