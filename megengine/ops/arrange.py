"""Copies between devices, and compositions that repeat or rearrange elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import device as devices
from megengine.core.errors import OptionError
from megengine.core.sizes import whole
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import OnnxRule, Sample, apply, define, public
from megengine.ops.common import Axes, Integers, as_tensor, floating, integer, listed, normalize_axis
from megengine.tensor import Tensor

_HOME = "megengine.functional.tensor"


define(
    "copy",
    lambda x, *, device: TensorSpec(x.shape, x.dtype, device),
    lambda x, device: x.copy(),
    lambda ctx, ct: (apply("copy", ct, device=ctx.inputs[0].device),),
    OnnxRule("Identity", read=False),
    lambda: (Sample((np.arange(6.0).reshape(shape),), {"device": "test0"}) for shape in ((2, 3), (6,))),
    by_type=True,
)


@public(home=_HOME, methods=("to",), by_spec=True)
def copy(inp: TensorLike, device: str | None = None) -> Tensor:
    """A copy of x on a device (its own by default), differentiable."""
    x = as_tensor(inp)
    return apply("copy", x, device=x.device if device is None else devices.normalize(device))


@public(home="megengine.functional.math", by_spec=True)
def isnan(inp: TensorLike) -> Tensor:
    """True where x is not a number."""
    x = as_tensor(inp)
    return apply("not_equal", x, x)


@public(home="megengine.functional.math", by_spec=True)
def isinf(inp: TensorLike) -> Tensor:
    """True where x is infinite."""
    x = floating(inp)
    return apply("equal", apply("abs", x), as_tensor(float("inf"), like=x))


@public(home=_HOME, by_spec=True)
def tile(inp: TensorLike, reps: Integers) -> Tensor:
    """X repeated along each axis as often as `reps` says; missing axes are added in front, as in NumPy."""
    x = as_tensor(inp)
    counts = tuple(whole(r) for r in listed(reps))
    ndim = max(len(counts), x.ndim)
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - x.ndim) + x.shape
    if min(counts, default=1) < 0:
        raise OptionError(f"tile: reps is {reps}; expected numbers of at least 0")
    split = tuple(n for length in shape for n in (1, length))
    wide = tuple(n for count, length in zip(counts, shape, strict=True) for n in (count, length))
    y = apply("broadcast_to", apply("reshape", x, shape=split), shape=wide)
    return apply("reshape", y, shape=tuple(c * n for c, n in zip(counts, shape, strict=True)))


@public(home=_HOME, by_spec=True)
def repeat(inp: TensorLike, repeats: int, axis: int | None = None) -> Tensor:
    """Each element repeated `repeats` times along `axis`; without an axis, of the flattened tensor."""
    x = as_tensor(inp)
    x = apply("reshape", x, shape=(x.size,)) if axis is None else x
    axis = normalize_axis("repeat", axis or 0, x.ndim)
    if repeats < 0:
        raise OptionError(f"repeat: repeats is {repeats}; expected at least 0")
    head, length, tail = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    y = apply("reshape", x, shape=(*head, length, 1, *tail))
    y = apply("broadcast_to", y, shape=(*head, length, whole(repeats), *tail))
    return apply("reshape", y, shape=(*head, length * whole(repeats), *tail))


@public(home=_HOME, by_spec=True)
def roll(inp: TensorLike, shift: Integers, axis: Axes = None) -> Tensor:
    """Elements moved cyclically along axes."""
    x = as_tensor(inp)
    if axis is None:
        return roll(apply("reshape", x, shape=(x.size,)), shift, 0).reshape(x.shape)
    shifts = [integer("roll", "shift", n) for n in listed(shift)]
    axes = listed(axis)
    if len(shifts) != len(axes):
        raise OptionError(f"roll: {counted(len(shifts), 'shift')} for {counted(len(axes), 'axis')}; expected as many")
    for count, a in zip(shifts, axes, strict=True):
        a = normalize_axis("roll", integer("roll", "axis", a), x.ndim)
        length = x.shape[a]
        if length and count % length:
            first, last = apply("split", x, sections=(length - count % length, count % length), axis=a)
            x = apply("concat", last, first, axis=a)
    return x


@public(home="megengine.functional.metric")
def topk_accuracy(logits: TensorLike, target: TensorLike, topk: Integers = 1) -> Any:
    """Share of the rows of logits [N,C] whose target [N] is among the k largest; a list for two k or more."""
    counts = [int(k) for k in listed(topk)]
    scores, wanted = as_tensor(logits), as_tensor(target).reshape(-1, 1)
    _, best = apply("topk", scores, k=max(counts), descending=True)
    hits = apply("cast", apply("equal", best, wanted.astype(best.dtype)), dtype=np.dtype(np.float32))
    shares = [apply("mean", hits[:, :k].sum(axis=1), axis=(0,), keepdims=False) for k in counts]
    return shares[0] if len(shares) == 1 else shares
