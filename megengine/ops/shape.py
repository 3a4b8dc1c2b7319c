"""Ops on the shape of a tensor: reshape, transpose, broadcast.

They accept quantized tensors and keep their dtype: the stored integers are moved.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import ArgumentError, ShapeError, brief
from megengine.core.sizes import whole
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import (
    MOVES_INTEGERS,
    ONNX_WRITER,
    ErrorSample,
    OnnxRule,
    Sample,
    apply,
    define,
    not_differentiable,
    public,
)
from megengine.ops.common import (
    INT32,
    Axes,
    Integers,
    as_tensor,
    broadcast_shapes,
    listed,
    normalize_axes,
    normalize_axis,
    sample_values,
    unbroadcast,
)
from megengine.tensor import Tensor

_HOME = "megengine.functional.tensor"

define(
    "GetVarShape",  # MegEngine's name: traced graphs and files store it
    lambda x: TensorSpec((x.ndim,), INT32, x.device),
    lambda x: np.array(x.shape, np.int32),
    not_differentiable("a shape is an integer"),
    ONNX_WRITER,
    lambda: [
        Sample((sample_values(3, 4),), differentiable=False),
        Sample((sample_values(2, 0, 1),), differentiable=False),
    ],
    by_type=True,
)


def resolve_shape(op: str, size: int, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape with its one -1 replaced so that it holds `size` elements."""
    shape = tuple(map(whole, shape))
    unknown = [i for i, n in enumerate(shape) if n == -1]
    known = math.prod(n for n in shape if n != -1)
    if len(unknown) > 1 or any(n < -1 for n in shape):
        raise ShapeError(f"{op}: target shape {shape} is not valid; expected lengths >= 0 and at most one -1")
    if unknown:
        if known == 0 or size % known:
            raise ShapeError(f"{op}: {counted(size, 'element')} do not fill shape {shape}")
        return tuple(size // known if n == -1 else n for n in shape)
    if known != size:
        raise ShapeError(f"{op}: shape {shape} holds {counted(known, 'element')}, the input has {size}")
    return shape


def reshaped(
    attrs: Mapping[str, Any], old: tuple[int, ...], new: tuple[int, ...], step: int | None = None
) -> list[dict[str, Any]]:
    """Let the shape for `reshape` follow where one length of its input changed; as stated where no axis is found.

    An axis of `old` that holds that length, alone or as its outer or inner factor, has the elements that belong to it
    `step` numbers apart; the axis of the stated shape with that distance holds it too. Beside a length of 1 several
    may: a given step, that of a length that was 1, tells which.
    """
    lengths = resolve_shape("reshape", math.prod(old), attrs["shape"])
    changed = [k for k, (m, n) in enumerate(zip(old, new, strict=True)) if m != n]
    if len(changed) != 1 or not math.prod(old):
        return [{"shape": lengths}]
    (k,) = changed
    inner, below = math.prod(old[k + 1 :]), [math.prod(lengths[j + 1 :]) for j in range(len(lengths))]
    if step is None:
        found = [j for j, n in enumerate(lengths) if below[j] * n == inner * old[k]]
        found += [j for j in range(len(lengths)) if below[j] == inner]
    else:
        within = [j for j, n in enumerate(lengths) if not (step % below[j] or below[j] * n % step)]
        found = sorted(within, key=lambda j: (lengths[j] != 1, below[j] * lengths[j] != step, below[j] != step))
    fitting = [j for j in dict.fromkeys(found) if (lengths[j] * new[k]) % old[k] == 0]
    followed = [(*lengths[:j], lengths[j] * new[k] // old[k], *lengths[j + 1 :]) for j in fitting]
    return [{"shape": shape} for shape in followed or [lengths]]


define(
    "reshape",
    lambda x, *, shape: TensorSpec(resolve_shape("reshape", x.size, shape), x.dtype, x.device),
    lambda x, shape: np.ascontiguousarray(x).reshape(shape),
    lambda ctx, ct: (apply("reshape", ct, shape=ctx.inputs[0].shape),),
    ONNX_WRITER,
    lambda: [
        Sample((sample_values(2, 6),), {"shape": (3, -1)}),
        Sample((sample_values(0, 3),), {"shape": (3, 0)}),
        Sample((sample_values(),), {"shape": (1, 1)}),
    ],
    lambda: [ErrorSample((np.zeros(6, np.float32),), {"shape": (4,)}, ShapeError, "reshape: shape .* holds 4")],
    quant=MOVES_INTEGERS,
    moves=True,
    by_type=True,
    keeps=lambda shape, attrs: tuple(attrs["shape"]) == shape,
    keeps_order=True,
    follow=reshaped,
)


@public(home=_HOME, by_spec=True)
def reshape(inp: TensorLike, target_shape: Integers) -> Tensor:
    """The same elements in another shape: integers in a sequence or a tensor; one length may be -1."""
    return apply("reshape", as_tensor(inp), shape=shape_argument((target_shape,), formulas=True))


@public(home="megengine.tensor", methods=("reshape", "view"), by_spec=True)
def reshape_method(self: Tensor, *args: Integers) -> Tensor:
    """The same elements in another shape: integers, one sequence or a tensor; one length may be -1."""
    return apply("reshape", self, shape=shape_argument(args, formulas=True))


def shape_argument(shape: Any, *, formulas: bool = False) -> tuple[int, ...]:
    """A shape given as integers, one sequence, or a tensor; `formulas` says whether lengths may be such."""
    usual = shape[0] if len(shape) == 1 else shape
    if type(usual) is tuple:
        for n in usual:
            if type(n) is not int:
                break
        else:  # no conversion
            return usual
    if len(shape) == 1 and not isinstance(shape[0], (numbers.Integral, float)):
        only = shape[0]
        if isinstance(only, (Tensor, np.ndarray)) and only.ndim > 1:
            raise ShapeError(f"a shape is given by a tensor of shape {only.shape}; expected one axis")
        shape = _elements(only, formulas) if isinstance(only, (Tensor, np.ndarray)) else only
        shape = [shape] if isinstance(shape, (numbers.Integral, float)) else shape
    if not isinstance(shape, str):
        shape = [_length(n, formulas) if isinstance(n, (Tensor, np.ndarray)) and n.size == 1 else n for n in shape]
    if isinstance(shape, str) or not all(isinstance(n, numbers.Integral) or np.ndim(n) == 0 for n in shape):
        raise ArgumentError(f"a shape is {brief(shape)}; expected integers")
    lengths = tuple(map(whole, shape))
    if any(isinstance(n, float) and n != length for n, length in zip(shape, lengths, strict=True)):
        raise ArgumentError(f"a shape is {brief(shape)}; expected integers")
    return lengths


def _elements(shape: Any, formulas: bool) -> Any:
    sizes = shape._sizes() if formulas and isinstance(shape, Tensor) else None
    return shape.tolist() if sizes is None else sizes


def _length(value: Any, formulas: bool) -> Any:
    size = value._sizes() if formulas and isinstance(value, Tensor) else None
    while isinstance(size, list):
        (size,) = size
    return value.item() if size is None else size


@public(home=_HOME, methods=("flatten",), by_spec=True)
def flatten(inp: TensorLike, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Axes start_axis..end_axis as one."""
    x = as_tensor(inp)
    if not x.shape:
        return apply("reshape", x, shape=(1,))
    a, b = normalize_axis("flatten", start_axis, x.ndim), normalize_axis("flatten", end_axis, x.ndim)
    return apply("reshape", x, shape=(*x.shape[:a], math.prod(x.shape[a : b + 1]), *x.shape[b + 1 :]))


@public(home=_HOME, by_spec=True)
def expand_dims(inp: TensorLike, axis: Integers) -> Tensor:
    """New axes of length 1 at the positions `axis` (an integer or several) of the result."""
    x = as_tensor(inp)
    items = listed(axis)
    ndim = x.ndim + len(items)
    axes = normalize_axes("expand_dims", items, ndim)
    lengths = iter(x.shape)
    return apply("reshape", x, shape=tuple(1 if i in axes else next(lengths) for i in range(ndim)))


@public(home=_HOME, by_spec=True)
def squeeze(inp: TensorLike, axis: Axes = None) -> Tensor:
    """Without the axes of length 1 (or without those named, which must have length 1)."""
    x = as_tensor(inp)
    axes = [i for i, n in enumerate(x.shape) if n == 1] if axis is None else normalize_axes("squeeze", axis, x.ndim)
    for a in axes:
        if x.shape[a] != 1:
            raise ShapeError(f"squeeze: axis {a} of shape {x.shape} has length {x.shape[a]}; expected 1")
    return apply("reshape", x, shape=tuple(n for i, n in enumerate(x.shape) if i not in axes))


def _transpose_infer(x: TensorSpec, *, perm: tuple[int, ...]) -> TensorSpec:
    if sorted(perm) != list(range(x.ndim)):
        raise ShapeError(f"transpose: {perm} is not a permutation of the {counted(x.ndim, 'axis')} of shape {x.shape}")
    return TensorSpec(tuple(x.shape[p] for p in perm), x.dtype, x.device)


def _transpose_keeps(shape: tuple[int, ...], attrs: Any) -> bool:
    perm = attrs["perm"]
    moved = [axis for axis in perm if shape[axis] != 1]
    return moved == sorted(moved) and tuple(shape[axis] for axis in perm) == shape


define(
    "transpose",
    _transpose_infer,
    lambda x, perm: np.require(np.transpose(x, perm), requirements="C"),
    lambda ctx, ct: (apply("transpose", ct, perm=tuple(int(i) for i in np.argsort(ctx.attrs["perm"]))),),
    OnnxRule("Transpose", {"perm": "perm"}, read=False),
    lambda: [Sample((sample_values(2, 3, 4),), {"perm": (2, 0, 1)}), Sample((sample_values(0, 3),), {"perm": (1, 0)})],
    lambda: [ErrorSample((np.zeros((2, 3), np.float32),), {"perm": (0, 0)}, ShapeError, "not a permutation")],
    quant=MOVES_INTEGERS,
    moves=True,
    by_type=True,
    keeps=_transpose_keeps,
    lift=lambda attrs: {"perm": (0, *(p + 1 for p in attrs["perm"]))},
)


@public(home=_HOME, by_spec=True)
def transpose(inp: TensorLike, pattern: Sequence[int | str]) -> Tensor:
    """Axes in another order, reversed for an empty pattern; "x" in the pattern makes a new axis of length 1."""
    order: Any = pattern
    x, order = as_tensor(inp), listed(order)
    return _permuted(x, order or list(reversed(range(x.ndim))))


@public(home="megengine.tensor", methods=("transpose", "permute"), by_spec=True)
def transpose_method(self: Tensor, *args: Integers | str) -> Tensor:
    """Axes in another order, given as integers or one sequence, with "x" for a new axis; without them: reversed."""
    only: Any = args[0] if len(args) == 1 else None
    items = list(args) if only is None or isinstance(only, numbers.Integral) else list(only)
    return _permuted(self, items or list(reversed(range(self.ndim))))


def _permuted(x: Tensor, items: list[Any]) -> Tensor:
    """Axes in this order, "x" being a new one of length 1."""
    items = [int(p) if isinstance(p, Tensor) else p for p in items]
    kept = [normalize_axis("transpose", p, x.ndim) for p in items if p != "x"]
    out = apply("transpose", x, perm=tuple(kept))
    new = [i for i, p in enumerate(items) if p == "x"]
    return expand_dims(out, new) if new else out


@public(home=_HOME, by_spec=True)
def swapaxes(inp: TensorLike, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged."""
    x = as_tensor(inp)
    a, b = normalize_axis("swapaxes", axis1, x.ndim), normalize_axis("swapaxes", axis2, x.ndim)
    perm = list(range(x.ndim))
    perm[a], perm[b] = b, a
    return apply("transpose", x, perm=tuple(perm))


def _broadcast_infer(x: TensorSpec, *, shape: tuple[int, ...]) -> TensorSpec:
    if broadcast_shapes("broadcast_to", x.shape, shape) != tuple(shape):
        raise ShapeError(f"broadcast_to: shape {x.shape} does not broadcast to {shape}")
    return TensorSpec(tuple(shape), x.dtype, x.device)


def _broadcast(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    out = np.empty(shape, x.dtype)
    out[...] = x
    return out


def _broadcast_follows(
    attrs: Mapping[str, Any], old: tuple[int, ...], new: tuple[int, ...], step: int | None = None
) -> list[dict[str, Any]]:
    skipped = len(attrs["shape"]) - len(old)
    ends = [n if m == s else s for m, n, s in zip(old, new, attrs["shape"][skipped:], strict=True)]
    return [{"shape": (*attrs["shape"][:skipped], *ends)}]


define(
    "broadcast_to",
    _broadcast_infer,
    _broadcast,
    lambda ctx, ct: (unbroadcast(ct, ctx.inputs[0].shape),),
    ONNX_WRITER,
    lambda: [Sample((sample_values(3, 1),), {"shape": (2, 3, 4)}), Sample((sample_values(1),), {"shape": (0,)})],
    moves=True,
    by_type=True,
    keeps=lambda shape, attrs: tuple(attrs["shape"]) == shape,
    quant=MOVES_INTEGERS,
    lift=lambda attrs: {"shape": (1, *attrs["shape"])},
    follow=_broadcast_follows,
)


@public(home=_HOME, by_spec=True)
def broadcast_to(inp: TensorLike, shape: Integers) -> Tensor:
    """Repeat along axes of length 1 until the shape is `shape`; None keeps the length of an axis that inp has."""
    x, wanted = as_tensor(inp), shape
    if isinstance(shape, (list, tuple)) and any(n is None for n in shape):
        new = len(shape) - x.ndim
        if any(n is None for n in shape[: max(new, 0)]):
            raise ShapeError(f"broadcast_to: shape is {shape}, inp's {x.shape}; expected the length of a new axis")
        wanted = [x.shape[i - new] if n is None else n for i, n in enumerate(shape)]
    return apply("broadcast_to", x, shape=shape_argument((wanted,), formulas=True))
