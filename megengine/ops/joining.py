"""Joining and splitting of tensors: concat, stack, split.

They accept quantized tensors and keep their dtype: the stored integers are moved.
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import DType
from megengine.core.errors import ArgumentError, DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import JOINS_INTEGERS, ONNX_WRITER, ErrorSample, OnnxRule, Sample, apply, define, public
from megengine.ops.common import Integers, as_tensor, cast, lift_axes, normalize_axis, promote, sample_values
from megengine.ops.creation import zeros_like
from megengine.tensor import Tensor

_HOME = "megengine.functional.tensor"


def _concat_infer(*xs: TensorSpec, axis: int) -> TensorSpec:
    if not xs:
        raise OptionError("concat: no tensors; expected at least one")
    first = xs[0]
    axis = normalize_axis("concat", axis, first.ndim)
    for i, x in enumerate(xs):
        if x.dtype != first.dtype:
            raise DTypeError(f"concat: input {i} is {x.dtype}, input 0 is {first.dtype}; expected one dtype")
        if x.ndim != first.ndim or any(
            a != b for k, (a, b) in enumerate(zip(x.shape, first.shape, strict=False)) if k != axis
        ):
            raise ShapeError(
                f"concat: input {i} has shape {x.shape}, input 0 {first.shape}; they differ outside axis {axis}"
            )
    length = sum(x.shape[axis] for x in xs)
    return TensorSpec((*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype, first.device)


def _concat_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor, ...]:
    axis = ctx.attrs["axis"] % ct.ndim
    return apply("split", ct, sections=tuple(x.shape[axis] for x in ctx.inputs), axis=axis)


define(
    "concat",
    _concat_infer,
    lambda *xs, axis: np.concatenate(xs, axis=axis),
    _concat_vjp,
    OnnxRule("Concat", {"axis": "axis"}, read=False),
    lambda: [
        Sample((sample_values(2, 3), sample_values(2, 1)), {"axis": 1}),
        Sample((sample_values(2, 3, 2), sample_values(0, 3, 2)), {"axis": 0}),
    ],
    lambda: [ErrorSample((np.zeros((2, 3)), np.zeros((3, 3))), {"axis": 1}, ShapeError, "concat: input 1 has shape")],
    quant=JOINS_INTEGERS,
    by_type=True,
    lift=lift_axes,
)


def _split_infer(x: TensorSpec, *, sections: tuple[int, ...], axis: int) -> tuple[TensorSpec, ...]:
    axis = normalize_axis("split", axis, x.ndim)
    if sum(sections) != x.shape[axis] or any(n < 0 for n in sections):
        raise ShapeError(f"split: sections {sections} do not add up to length {x.shape[axis]} of axis {axis}")
    return tuple(TensorSpec((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype, x.device) for n in sections)


def _split_vjp(ctx: Any, *cts: Tensor | None) -> tuple[Tensor]:
    filled = [zeros_like(o) if ct is None else ct for ct, o in zip(cts, ctx.outputs, strict=True)]
    return (apply("concat", *filled, axis=ctx.attrs["axis"]),)


define(
    "split",
    _split_infer,
    lambda x, sections, axis: tuple(np.ascontiguousarray(p) for p in np.split(x, np.cumsum(sections)[:-1], axis)),
    _split_vjp,
    ONNX_WRITER,
    lambda: [Sample((sample_values(2, 5),), {"sections": (2, 0, 3), "axis": 1})],
    lambda: [ErrorSample((np.zeros((2, 5)),), {"sections": (2, 2), "axis": 1}, ShapeError, "do not add up")],
    moves=True,
    by_type=True,
    lift=lift_axes,
)


def _common(op: str, inps: Any, device: Any) -> list[Tensor]:
    xs = [as_tensor(x) if device is None else as_tensor(x).to(device) for x in inps]
    if not xs:
        raise ArgumentError(f"{op}: no tensors; expected at least one")
    dtype: DType = xs[0]._dtype
    for x in xs:
        if x._dtype is not dtype and x._dtype != dtype:  # plain dtypes are mostly single objects
            dtype = promote(op, dtype, x._dtype)
    return [cast(x, dtype) for x in xs]


@public(home=_HOME)
def concat(inps: Iterable[TensorLike], axis: int = 0, device: str | None = None) -> Tensor:
    """Tensors one after the other along `axis`, on `device`; a tensor without axes counts as one element."""
    xs = _common("concat", inps, device)
    if any([not x.spec.shape for x in xs]):
        xs = [x if x.spec.shape else apply("reshape", x, shape=(1,)) for x in xs]
    return xs[0] if len(xs) == 1 else apply("concat", *xs, axis=int(axis))


@public(home=_HOME)
def stack(inps: Iterable[TensorLike], axis: int = 0, device: str | None = None) -> Tensor:
    """Tensors of one shape along a new axis, on `device`; several tensors without axes count as rows of one element."""
    xs = _common("stack", inps, device)
    if len(xs) > 1 and not any([x.spec.shape for x in xs]):
        xs = [apply("reshape", x, shape=(1,)) for x in xs]
    return stacked(xs, axis)


def stacked(xs: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape and dtype along a new axis."""
    shape = xs[0].spec.shape
    for i, x in enumerate(xs):
        if x.spec.shape != shape:
            raise ShapeError(f"stack: input {i} has shape {x.shape}, input 0 {xs[0].shape}; expected equal shapes")
    axis = normalize_axis("stack", axis, len(shape) + 1)
    wide = (*shape[:axis], 1, *shape[axis:])
    return apply("concat", *[apply("reshape", x, shape=wide) for x in xs], axis=axis)


@public(home=_HOME, by_spec=True)
def split(inp: TensorLike, nsplits_or_sections: Integers, axis: int = 0) -> tuple[Tensor, ...]:
    """Parts along `axis`, by their number or by the positions of the cuts."""
    x = as_tensor(inp)
    axis = normalize_axis("split", axis, x.ndim)
    length = x.shape[axis]
    if isinstance(nsplits_or_sections, Tensor) and nsplits_or_sections.ndim == 0:
        nsplits_or_sections = nsplits_or_sections.item()
    if isinstance(nsplits_or_sections, (int, numbers.Integral)) or (
        isinstance(nsplits_or_sections, float) and nsplits_or_sections.is_integer()
    ):
        n = int(nsplits_or_sections)
        if n <= 0 or length < n:
            raise OptionError(f"split: {counted(n, 'part')} of length {length} on axis {axis}; expected 1..{length}")
        base, more = divmod(length, n)
        sections = tuple(base + (i < more) for i in range(n))
    else:
        cuts = [0, *map(int, nsplits_or_sections), length]
        sections = tuple(b - a for a, b in itertools.pairwise(cuts))
    return apply("split", x, sections=sections, axis=axis)
