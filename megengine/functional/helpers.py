"""Names that MegEngine's functional modules have beside their functions, for code that imports them."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from megengine import device as devices
from megengine import ops
from megengine.core.dtype import DType, as_dtype, storage_of
from megengine.core.errors import OptionError, ShapeError, nearest
from megengine.ops.common import POOLINGS, promote
from megengine.tensor import Tensor

pixel_shuffle_cpp = layerPixelShuffle_traceable = ops.layer_norm.pixel_shuffle  # noqa: N816 (MegEngine's name)
broadcast_cpp = ops.shape.broadcast_to
expand_dims_cpp = ops.shape.expand_dims
split_cpp = ops.joining.split
squeeze_cpp = ops.shape.squeeze


def _lengths(name: str, x: Any, count: int) -> tuple[int, ...]:
    items = [x] * count if isinstance(x, numbers.Integral) else list(x)
    if len(items) < count or not all(isinstance(i, numbers.Integral) for i in items[:count]):
        raise ShapeError(f"{name}: got {x!r}; expected an integer, or {count} of them")
    return tuple(int(i) for i in items[:count])


def expand_hw(x: Any) -> tuple[int, int]:
    """Height and width: of one integer, or of a pair."""
    height, width = _lengths("expand_hw", x, 2)
    return height, width


def expand_dhw(x: Any) -> tuple[int, int, int]:
    """Depth, height and width: of one integer, or of three."""
    depth, height, width = _lengths("expand_dhw", x, 3)
    return depth, height, width


def make_shape_tuple(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of integers: of one integer, several, or a tensor of them."""
    items = np.asarray(shape.numpy() if isinstance(shape, Tensor) else shape)
    if items.ndim > 1 or (items.size and not np.issubdtype(items.dtype, np.integer)):
        raise ShapeError(f"make_shape_tuple: got {shape!r}; expected an integer, or a flat list of them")
    return tuple(int(i) for i in items.reshape(-1))


def dtype_promotion(inp: Iterable[Any]) -> DType:
    """The dtype that an operator of these tensors and numbers computes in; tensors count before plain numbers.

    Raises OptionError without any.
    """
    values = list(inp)
    tensors = [v for v in values if isinstance(v, Tensor)] or [Tensor(v) for v in values]
    if not tensors:
        raise OptionError("dtype_promotion: got nothing; expected at least one tensor or number")
    dtype = tensors[0].dtype
    for t in tensors[1:]:
        dtype = promote("dtype_promotion", dtype, t.dtype)
    return dtype


def get_device(inp: Any) -> str:
    """The device of the first tensor among the arguments; the default device if there is none."""
    values = inp if isinstance(inp, (list, tuple)) else [inp]
    return next((v.device for v in values if isinstance(v, Tensor)), devices.CompNode(devices.get_default_device()))


def Const(value: Any, dtype: Any = None, device: str | None = None) -> Tensor:  # noqa: N802 (MegEngine's name)
    """A tensor of a constant."""
    return Tensor(value, dtype=dtype, device=device)


def adaptive_pool2d_cpp(inp: Tensor, oshp: Any, mode: str) -> Tensor:
    """Adaptive pooling of [N,C,H,W]; mode is "max" or "average", in any case of letters."""
    functions = ops.pool.adaptive_max_pool2d, ops.pool.adaptive_avg_pool2d
    kinds: dict[str, Callable[..., Tensor]] = dict(zip(POOLINGS, functions, strict=True))
    if str(mode).lower() not in kinds:
        raise OptionError(f"adaptive_pool2d: mode is {mode!r}; expected 'max' or 'average'{nearest(str(mode), kinds)}")
    return kinds[mode.lower()](inp, oshp)


def scalar(value: float, dtype: Any = None, device: str | None = None) -> Tensor:
    """A number as a tensor without axes; without a dtype as `tensor(value)` has it."""
    stored = value if dtype is None else np.asarray(value, storage_of(as_dtype(dtype)))
    return Tensor(stored, dtype=dtype, device=device)
