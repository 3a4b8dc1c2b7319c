"""Layer, group and instance normalisation: compositions of other ops."""

from __future__ import annotations

from typing import Any

from megengine.core.errors import OptionError, ShapeError
from megengine.dispatch import apply, public
from megengine.ops.common import as_tensor, floating, normalize_axes
from megengine.ops.reduce import norm
from megengine.tensor import Tensor

_HOME = "megengine.functional.nn"


def _standardize(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps), the statistics taken over `axes`."""
    centred = x - apply("mean", x, axis=axes, keepdims=True)
    return centred * apply("rsqrt", apply("mean", centred * centred, axis=axes, keepdims=True) + eps)


def _affine(op: str, y: Tensor, weight: Any, bias: Any, *, affine: bool, shape: tuple[int, ...]) -> Tensor:
    if not affine:
        return y
    if weight is None or bias is None:
        raise OptionError(f"{op}: affine=True needs weight and bias; pass both or affine=False")
    return y * apply("reshape", as_tensor(weight), shape=shape) + apply("reshape", as_tensor(bias), shape=shape)


@public(home=_HOME)
def layer_norm(
    inp: Any, normalized_shape: Any, affine: bool, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Standardise x over its last axes, which have the lengths `normalized_shape`; weight and bias have that shape."""
    x = floating(inp)
    last = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not last or x.shape[-len(last) :] != last:
        raise ShapeError(f"layer_norm: input has shape {x.shape}; expected it to end in {last}")
    y = _standardize(x, tuple(range(x.ndim - len(last), x.ndim)), eps)
    return _affine("layer_norm", y, weight, bias, affine=affine, shape=last)


@public(home=_HOME)
def general_norm(
    inp: Any, normalized_axis: Any, affine: bool = True, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Standardise x over `normalized_axis`; weight and bias have the lengths of those axes."""
    x = floating(inp)
    axes = normalize_axes("general_norm", normalized_axis, x.ndim)
    shape = tuple(n if i in axes else 1 for i, n in enumerate(x.shape))
    return _affine("general_norm", _standardize(x, axes, eps), weight, bias, affine=affine, shape=shape)


@public(home=_HOME)
def group_norm(
    inp: Any, num_groups: int, affine: bool, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Standardise x [N,C,H,W] within each of `num_groups` groups of channels; weight and bias hold C elements."""
    x = floating(inp)
    if x.ndim != 4 or num_groups < 1 or x.shape[1] % num_groups:
        raise ShapeError(f"group_norm: input has shape {x.shape}; expected [N,C,H,W], C a multiple of {num_groups}")
    n, c, h, w = x.shape
    grouped = apply("reshape", x, shape=(n, num_groups, c // num_groups, h, w))
    y = apply("reshape", _standardize(grouped, (2, 3, 4), eps), shape=x.shape)
    return _affine("group_norm", y, weight, bias, affine=affine, shape=(1, c, 1, 1))


@public(home=_HOME)
def instance_norm(inp: Any, affine: bool, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Standardise each channel of each picture of x [N,C,H,W]; weight and bias hold C elements."""
    x = floating(inp)
    if x.ndim != 4:
        raise ShapeError(f"instance_norm: input has shape {x.shape}; expected [N,C,H,W]")
    y = _standardize(x, (2, 3), eps)
    return _affine("instance_norm", y, weight, bias, affine=affine, shape=(1, x.shape[1], 1, 1))


@public(home="megengine.functional.math")
def normalize(inp: Any, ord: float | None = None, axis: int | None = None, eps: float = 1e-12) -> Tensor:
    """X divided by its norm along `axis` (or of the whole tensor), at least eps."""
    x = floating(inp)
    length = norm(x, ord) if axis is None else norm(x, ord, axis, keepdims=True)
    return x / apply("clip", length, lo=float(eps), hi=float("inf"))
