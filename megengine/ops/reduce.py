"""Reductions, sorting and searching along axes."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, bfloat16, storage_of
from megengine.core.errors import OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import (
    MOVES_INTEGERS,
    ONNX_WRITER,
    ErrorSample,
    QuantRule,
    Sample,
    apply,
    define,
    not_differentiable,
    public,
)
from megengine.kernels.reference.order import in_order
from megengine.ops import quantized_calls
from megengine.ops.common import (
    BOOL,
    FLOAT32,
    INT32,
    Axes,
    as_tensor,
    cast,
    floating,
    lift_axes,
    listed,
    masked,
    names_only_axis,
    normalize_axes,
    normalize_axis,
    reduced_shape,
    refuse_quantized,
)
from megengine.tensor import Tensor

_HOME = "megengine.functional.math"


def _infer(name: str) -> Callable[..., TensorSpec]:
    def infer(x: TensorSpec, *, axis: tuple[int, ...] | None, keepdims: bool) -> TensorSpec:
        picks = name in ("max", "min")
        if not picks or (isinstance(x.dtype, QuantizedDType) and x.dtype.axis is not None):
            refuse_quantized(name, x)
        axes = normalize_axes(name, axis, x.ndim)
        if picks and any(x.shape[a] == 0 for a in axes):
            raise ShapeError(f"{name}: cannot reduce an empty axis of shape {x.shape}; expected at least one element")
        return TensorSpec(reduced_shape(x.shape, axes, keepdims), x.dtype, x.device)

    return infer


def _samples(empty: bool) -> Callable[[], Iterator[Sample]]:
    def samples() -> Iterator[Sample]:
        rng = np.random.default_rng(3)
        for shape, axis, keep in (
            ((3, 4), None, False),
            ((3, 4), (1,), True),
            ((2, 3, 4, 5), (2, 3), True),
            ((2, 3, 4), (-1,), False),
            ((5, 48), (1,), False),  # long enough that the order of summation matters
        ):
            yield Sample((rng.uniform(0.5, 2, shape),), {"axis": axis, "keepdims": keep})
        if empty:
            yield Sample((np.zeros((0, 3)),), {"axis": (0,), "keepdims": False})

    return samples


def _errors(name: str) -> Callable[[], Iterator[ErrorSample]]:
    def errors() -> Iterator[ErrorSample]:
        x = np.zeros((2, 3), np.float32)
        yield ErrorSample((x,), {"axis": (2,), "keepdims": False}, IndexError, rf"{name}: axis 2 is out of range")
        yield ErrorSample((x,), {"axis": (0, 0), "keepdims": False}, OptionError, "names one axis twice")

    return errors


def _expand(ct: Tensor, ctx: Any) -> Tensor:
    """The cotangent of a reduction, broadcast to the shape of its input."""
    shape = ctx.inputs[0].spec.shape
    kept = _kept(shape, ctx.attrs["axis"])
    if ct.spec.shape not in ((), kept):
        ct = apply("reshape", ct, shape=kept)
    return apply("broadcast_to", ct, shape=shape)


@functools.lru_cache(maxsize=1024)
def _kept(shape: tuple[int, ...], axis: Any) -> tuple[int, ...]:
    """The shape after a reduction that keeps the axes."""
    return reduced_shape(shape, normalize_axes("reduce", axis, len(shape)), True)


def _count(ctx: Any) -> float:
    x = ctx.inputs[0]
    axes = normalize_axes("reduce", ctx.attrs["axis"], x.ndim)
    return float(np.prod([x.shape[a] for a in axes], dtype=np.float64))


def _extremum_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    hit = apply("equal", ctx.inputs[0], _expand(ctx.outputs[0], ctx))
    share = ct / apply("sum", apply("cast", hit, dtype=ct.dtype), **ctx.attrs)
    return (masked(_expand(share, ctx), hit),)


_HALVES = (np.dtype(np.float16), np.dtype(bfloat16))


def _wide(x: np.ndarray) -> Any:
    """Sums of half-precision numbers are kept in float32."""
    return np.float32 if x.dtype in _HALVES else None


def _mean(x: np.ndarray, axis: Any, keepdims: bool) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.sum(in_order(x), axis=axis, keepdims=keepdims, dtype=_wide(x))
        count = x.size // total.size if total.size else 0
        return (total / total.dtype.type(count)).astype(x.dtype)


def _others(x: Tensor) -> Tensor:
    """For each element of the last axis the product of the others, by halves; without division, so zeros are exact."""
    *lead, n = x.shape
    one = apply("broadcast_to", as_tensor(1, like=x), shape=(*lead, 1))
    if n <= 1:
        return one if n else x
    half = -(-n // 2)
    pairs = apply("reshape", apply("concat", x, one, axis=len(lead)) if n % 2 else x, shape=(*lead, half, 2))
    left, right = pairs[..., :1], pairs[..., 1:]
    rest = apply("reshape", _others(apply("reshape", left * right, shape=(*lead, half))), shape=(*lead, half, 1))
    products = apply("reshape", apply("concat", right, left, axis=len(lead) + 1) * rest, shape=(*lead, 2 * half))
    return products if n == 2 * half else products[..., :n]


def _prod_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    x = ctx.inputs[0]
    axes = normalize_axes("prod", ctx.attrs["axis"], x.ndim)
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    perm = kept + axes
    moved = apply("transpose", x, perm=perm)
    rest = _others(apply("reshape", moved, shape=(*moved.shape[: len(kept)], math.prod(moved.shape[len(kept) :]))))
    rest = apply("transpose", apply("reshape", rest, shape=moved.shape), perm=tuple(np.argsort(perm).tolist()))
    return (_expand(ct, ctx) * rest,)


def _reduction(
    name: str, reference: Callable[..., np.ndarray], vjp: Callable[..., tuple], *, empty: bool = False, **rules: Any
) -> None:
    """Define a reduction with the attributes `axis` and `keepdims`; with `empty`, no elements have a value too."""
    define(name, _infer(name), reference, vjp, ONNX_WRITER, _samples(empty), _errors(name), lift=lift_axes, **rules)


def _summed(op: str, what: str) -> QuantRule:
    usable = lambda attrs: None if attrs.get("axis") is not None else f"it takes the {what} over all axes"  # noqa: E731
    return QuantRule("pool", op, non_negative="inherit", usable=usable)


# `reduce` of the ufuncs: np.sum and np.max call it too, and take twice as long
_reduction(
    "sum",
    lambda x, axis, keepdims: np.add.reduce(in_order(x), axis=axis, dtype=_wide(x) or x.dtype, keepdims=keepdims),
    lambda ctx, ct: (_expand(ct, ctx),),
    empty=True,
    quant=_summed("qsum", "sum"),
)
_reduction("mean", _mean, lambda ctx, ct: (_expand(ct, ctx) / _count(ctx),), quant=_summed("qmean", "mean"))
_reduction(
    "prod",
    lambda x, axis, keepdims: np.multiply.reduce(in_order(x), axis=axis, keepdims=keepdims, dtype=x.dtype),
    _prod_vjp,
    empty=True,
)
for _name, _ufunc in (("max", np.maximum), ("min", np.minimum)):
    _reduction(
        _name,
        lambda x, axis, keepdims, _ufunc=_ufunc: _ufunc.reduce(x, axis=axis, keepdims=keepdims),
        _extremum_vjp,
        quant=MOVES_INTEGERS,
        moves=True,
    )


def _arg_infer(name: str) -> Callable[..., TensorSpec]:
    def infer(x: TensorSpec, *, axis: int, keepdims: bool) -> TensorSpec:
        refuse_quantized(name, x)
        axis = normalize_axis(name, axis, x.ndim)
        if x.shape[axis] == 0:
            raise ShapeError(f"{name}: axis {axis} of shape {x.shape} is empty; expected at least one element")
        return TensorSpec(reduced_shape(x.shape, (axis,), keepdims), INT32, x.device)

    return infer


def _arg_samples() -> Iterator[Sample]:
    x = np.random.default_rng(0).standard_normal((3, 5, 4))
    yield Sample((x,), {"axis": 1, "keepdims": False}, False)
    yield Sample((x,), {"axis": -1, "keepdims": True}, False)


for _name, _function, _type in (("argmax", np.argmax, "ArgMax"), ("argmin", np.argmin, "ArgMin")):
    define(
        _name,
        _arg_infer(_name),
        lambda x, axis, keepdims, _function=_function: _function(x, axis=axis, keepdims=keepdims),
        not_differentiable("returns indices"),
        ONNX_WRITER,
        _arg_samples,
        lift=lift_axes,
    )


def reduce(name: str, x: Any, axis: Axes, keepdims: bool, *, real: bool = False) -> Tensor:
    """Apply the reduction `name` along `axis` (None: all)."""
    x = floating(x) if real else as_tensor(x)
    axes = None if axis is None or names_only_axis(axis, x.ndim) else tuple(int(a) for a in listed(axis))
    return apply(name, x, axis=axes, keepdims=bool(keepdims))


def _counted(inp: Any) -> Tensor:
    """Booleans as the numbers 0 and 1."""
    x = as_tensor(inp)
    return apply("cast", x, dtype=INT32) if x.dtype == BOOL else x


@public(home=_HOME, methods=("sum",), by_spec=True, quantized=quantized_calls.summed)
def sum(inp: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Sum of elements along `axis` (an integer, several, or None for all)."""
    return reduce("sum", _counted(inp), axis, keepdims)


@public(home=_HOME, methods=("prod",), by_spec=True)
def prod(inp: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Product of elements along `axis`."""
    return reduce("prod", _counted(inp), axis, keepdims)


def _for_mean(inp: Any) -> Tensor:
    """A float tensor whose mean does not overflow: float16 as float32."""
    x = floating(inp)
    return cast(x, FLOAT32) if x.dtype == np.float16 else x


@public(home=_HOME, methods=("mean",), by_spec=True, quantized=quantized_calls.on_reals)
def mean(inp: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Mean along `axis`; of float16 a float32, as in MegEngine."""
    return reduce("mean", _for_mean(inp), axis, keepdims)


@public(home=_HOME, methods=("max",), by_spec=True, quantized=quantized_calls.on_whole)
def max(inp: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Largest element along `axis`."""
    return reduce("max", inp, axis, keepdims)


@public(home=_HOME, methods=("min",), by_spec=True, quantized=quantized_calls.on_whole)
def min(inp: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Smallest element along `axis`."""
    return reduce("min", inp, axis, keepdims)


@public(home=_HOME, by_spec=True)
def var(inp: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Variance along `axis`, dividing by the number of elements; of float16 a float32, as in MegEngine."""
    x = _for_mean(inp)
    d = x - reduce("mean", x, axis, True)
    return reduce("mean", d * d, axis, keepdims)


@public(home=_HOME, by_spec=True)
def std(inp: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Standard deviation along `axis`, dividing by the number of elements; of float16 a float32."""
    return apply("sqrt", var(inp, axis, keepdims))


@public(home=_HOME, by_spec=True)
def norm(inp: TensorLike, ord: float | None = None, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Vector norm of order `ord` (default 2) along `axis`, or of all elements."""
    x, order = floating(inp), 2.0 if ord is None else float(ord)
    size = x if order % 2 == 0 else apply("abs", x)  # even powers need no absolute value, which is not smooth at 0
    if order == np.inf:
        return reduce("max", size, axis, keepdims)
    if order == -np.inf:
        return reduce("min", size, axis, keepdims)
    if order == 0:  # a count, which is an integer in MegEngine too
        return reduce("sum", apply("cast", apply("not_equal", x, as_tensor(0, like=x)), dtype=INT32), axis, keepdims)
    return reduce("sum", size**order, axis, keepdims) ** (1 / order)


def _arg(name: str, inp: Any, axis: Any, keepdims: bool) -> Tensor:
    x = as_tensor(inp)
    axis = None if names_only_axis(axis, x.ndim) else axis
    if isinstance(axis, numbers.Integral):
        return apply(name, x, axis=int(axis), keepdims=bool(keepdims))
    axes = normalize_axes(name, axis, x.ndim)
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    flat = apply("transpose", x, perm=kept + axes)
    flat = apply("reshape", flat, shape=(*(x.shape[a] for a in kept), -1))
    index = apply(name, flat, axis=len(kept), keepdims=False)
    return apply("reshape", index, shape=reduced_shape(x.shape, axes, True)) if keepdims and axis is not None else index


@public(home=_HOME, by_spec=True)
def argmax(inp: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Index (int32) of the first largest element along `axis`; of several axes (None: all), the flat index."""
    return _arg("argmax", inp, axis, keepdims)


@public(home=_HOME, by_spec=True)
def argmin(inp: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Index (int32) of the first smallest element along `axis`; of several axes (None: all), the flat index."""
    return _arg("argmin", inp, axis, keepdims)


def _topk_infer(x: TensorSpec, *, k: int, descending: bool) -> tuple[TensorSpec, TensorSpec]:
    refuse_quantized("topk", x)
    if not x.shape or not (0 < k <= x.shape[-1] or k == x.shape[-1] == 0):
        raise OptionError(f"topk: k is {k}; expected 1..{x.shape[-1] if x.shape else 0} for shape {x.shape}")
    shape = (*x.shape[:-1], k)
    return TensorSpec(shape, x.dtype, x.device), TensorSpec(shape, INT32, x.device)


def _topk(x: np.ndarray, k: int, descending: bool) -> tuple[np.ndarray, np.ndarray]:
    key = x
    if descending:
        key = ~x if x.dtype.kind in "iub" else -x  # the smallest integer has no negative
    order = np.argsort(key, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


def _topk_vjp(ctx: Any, ct: Tensor, _: Tensor | None) -> tuple[Tensor]:
    x = ctx.inputs[0]
    zero = Tensor._wrap(np.zeros((), storage_of(ct.dtype)), None, ct.device)
    zeros = apply("broadcast_to", zero, shape=x.shape)  # made where the gradient is
    return (apply("scatter_elements", zeros, ctx.outputs[1], ct, axis=x.ndim - 1, reduction="add"),)


define(
    "topk",
    _topk_infer,
    _topk,
    _topk_vjp,
    ONNX_WRITER,
    lambda: [Sample((np.random.default_rng(1).permutation(20).reshape(4, 5) * 1.0,), {"k": 3, "descending": True})],
)


@public(home=_HOME, by_spec=True)
def topk(
    inp: TensorLike, k: int, descending: bool = True, kth_only: bool = False, no_sort: bool = False
) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements of the last axis and their int32 indices; `kth_only`: only the k-th.

    As in MegEngine, a k above the length of the axis means all of it, and one below 0 the other order.
    """
    x, count, down = as_tensor(inp), int(k), bool(descending)
    if count < 0:
        count, down = -count, not down
    if x.ndim and x.shape[-1] < count:
        count = x.shape[-1]
    values, indices = apply("topk", x, k=count, descending=down)
    return (values[..., count - 1], indices[..., count - 1]) if kth_only else (values, indices)


@public(home=_HOME, by_spec=True)
def sort(inp: TensorLike, descending: bool = False) -> tuple[Tensor, Tensor]:
    """The last axis in order, and the int32 indices of its elements in the input."""
    return _sorted("sort", inp, descending)


def _sorted(name: str, inp: Any, descending: bool) -> tuple[Tensor, Tensor]:
    x = as_tensor(inp)
    if x.ndim == 0:
        raise ShapeError(f"{name}: x has no axes; expected one or more: reshape it to (1,)")
    return apply("topk", x, k=x.shape[-1], descending=bool(descending))


@public(home=_HOME, by_spec=True)
def argsort(inp: TensorLike, descending: bool = False) -> Tensor:
    """int32 indices that put the last axis in order."""
    return _sorted("argsort", inp, descending)[1]
