"""Normalisation of each sample, and other compositions of layers."""

from __future__ import annotations

import math
from typing import Any

from megengine.core.errors import ShapeError
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import apply, mixed, public
from megengine.ops.common import Integers, as_tensor, floating, integer, listed, normalize_axes, operands
from megengine.ops.reduce import norm
from megengine.tensor import Tensor

_HOME = "megengine.functional.nn"


def _standardize(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    x = mixed.raised(x)
    mean = apply("mean", x, axis=axes, keepdims=True)
    centred = apply("sub", x, mean)
    var = apply("mean", apply("mul", centred, centred), axis=axes, keepdims=True)
    shift = Tensor(eps, dtype=x.dtype, device=x.device)
    return apply("div", centred, apply("sqrt", apply("add", var, shift)))


def _scaled(x: Tensor, weight: Any, bias: Any, shape: tuple[int, ...]) -> Tensor:
    if weight is not None:
        x = apply("mul", x, apply("reshape", mixed.raised(as_tensor(weight)), shape=shape))
    if bias is not None:
        x = apply("add", x, apply("reshape", mixed.raised(as_tensor(bias)), shape=shape))
    return x


@public(home=_HOME, by_spec=True)
def layer_norm(
    inp: TensorLike,
    normalized_shape: Integers,
    affine: bool,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise inp over its last axes, whose lengths are `normalized_shape` (Ba et al. 2016).

    weight, bias: of that shape, used with affine. Raises ShapeError where the lengths differ.
    """
    x = floating(inp)
    tail = tuple(int(n) for n in listed(normalized_shape))
    if not tail or x.shape[-len(tail) :] != tail:
        raise ShapeError(f"layer_norm: x is {x.shape}; expected it to end in {tail}")
    y = _standardize(x, tuple(range(x.ndim - len(tail), x.ndim)), eps)
    return _scaled(y, weight, bias, tail) if affine else y


@public(home=_HOME, by_spec=True)
def group_norm(
    inp: TensorLike,
    num_groups: int,
    affine: bool,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise inp [N,C,...] over groups of C / num_groups channels (Wu and He 2018). weight, bias: C elements."""
    x, num_groups = floating(inp), integer("group_norm", "num_groups", num_groups)
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ShapeError(f"group_norm: x is {x.shape}; expected [N,C,...] with C divisible by num_groups={num_groups}")
    n, c = x.shape[:2]
    grouped = apply("reshape", x, shape=(n, num_groups, c // num_groups * math.prod(x.shape[2:])))
    y = apply("reshape", _standardize(grouped, (2,), eps), shape=x.shape)
    return _scaled(y, weight, bias, (1, c, *[1] * (x.ndim - 2))) if affine else y


@public(home=_HOME)
def instance_norm(
    inp: TensorLike, affine: bool, weight: TensorLike | None = None, bias: TensorLike | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise each channel of each sample of inp [N,C,...] (Ulyanov et al. 2016). weight, bias: C elements."""
    x = floating(inp)
    if x.ndim < 3:
        raise ShapeError(f"instance_norm: x is {x.shape}; expected [N,C,...] with at least 3 axes")
    y = _standardize(x, tuple(range(2, x.ndim)), eps)
    return _scaled(y, weight, bias, (1, x.shape[1], *[1] * (x.ndim - 2))) if affine else y


@public(home=_HOME, by_spec=True)
def prelu(x: TensorLike, y: TensorLike) -> Tensor:
    """X where positive, else x times y; y is a number or one slope per channel (He et al. 2015)."""
    value, slope = operands("prelu", as_tensor(x), y)
    if slope.size > 1:
        if value.ndim < 2 or slope.size != value.shape[1]:
            raise ShapeError(f"prelu: y has {counted(slope.size, 'slope')}; expected 1 or one a channel: {value.shape}")
        slope = apply("reshape", slope, shape=(1, slope.size, *[1] * (value.ndim - 2)))
    zero = Tensor(0.0, dtype=value.dtype, device=value.device)
    # at 0 the first operands have the slope: that of the result is 1 there, as in MegEngine
    return apply("add", apply("maximum", value, zero), apply("mul", apply("minimum", zero, value), slope))


@public(home=_HOME, by_spec=True)
def pixel_shuffle(inp: TensorLike, upscale_factor: int) -> Tensor:
    """[..., C*r*r, H, W] -> [..., C, H*r, W*r] (Shi et al. 2016)."""
    x, r = as_tensor(inp), int(upscale_factor)
    if r < 1 or x.ndim < 3 or x.shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle: x is {x.shape}; expected [..., C*{r}*{r}, H, W] with upscale_factor {r}")
    *lead, c, h, w = x.shape
    k = len(lead)
    split = apply("reshape", x, shape=(*lead, c // (r * r), r, r, h, w))
    perm = (*range(k), k, k + 3, k + 1, k + 4, k + 2)
    return apply("reshape", apply("transpose", split, perm=perm), shape=(*lead, c // (r * r), h * r, w * r))


@public(home=_HOME)
def general_norm(
    inp: TensorLike,
    normalized_axis: Integers,
    affine: bool = True,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardise x over `normalized_axis`; weight and bias have the lengths of those axes."""
    x = floating(inp)
    axes = normalize_axes("general_norm", normalized_axis, x.ndim)
    shape = tuple(n if i in axes else 1 for i, n in enumerate(x.shape))
    y = _standardize(x, axes, eps)
    return _scaled(y, weight, bias, shape) if affine else y


@public(home="megengine.functional.math", by_spec=True)
def normalize(inp: TensorLike, ord: float | None = None, axis: int | None = None, eps: float = 1e-12) -> Tensor:
    """X divided by its norm along `axis` (or of the whole tensor), at least eps."""
    x = floating(inp)
    length = norm(x, ord) if axis is None else norm(x, ord, axis, keepdims=True)
    return x / apply("clip", length, lo=float(eps), hi=float("inf"))
