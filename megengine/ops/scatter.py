"""Elements taken from and put at places along an axis, and at places named by coordinates, as ONNX has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.errors import DTypeError, IndexOutOfRangeError, ShapeError
from megengine.core.sizes import equals
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import ONNX_WRITER, ErrorSample, OnnxRule, Sample, apply, define
from megengine.ops.common import choice, masked, noise, normalize_axis
from megengine.tensor import Tensor

# the function that combines an element with an update, None where the update takes its place
REDUCTIONS = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _check_index(op: str, index: TensorSpec) -> None:
    if isinstance(index.dtype, QuantizedDType) or storage_of(index.dtype).kind not in "iu":
        raise DTypeError(f"{op}: the index is {index.dtype}; expected integers")


def _inside(op: str, index: np.ndarray, length: int, axis: int) -> np.ndarray:
    """The index counted from 0. Raises IndexOutOfRangeError for a place outside of the axis."""
    outside = (index < -length) | (index >= length)
    if np.any(outside):
        worst = int(index.reshape(-1)[np.argmax(outside)])
        raise IndexOutOfRangeError(f"{op}: index {worst} is out of range for axis {axis} of length {length}")
    return np.where(index < 0, index + length, index)


def _along_infer(op: str, x: TensorSpec, index: TensorSpec, axis: int) -> None:
    _check_index(op, index)
    axis = normalize_axis(op, axis, x.ndim)
    pairs = enumerate(zip(index.shape, x.shape, strict=False))
    if index.ndim != x.ndim or any(a > b for k, (a, b) in pairs if k != axis):
        expected = f"expected {counted(x.ndim, 'axis')}, none longer but axis {axis}"
        raise ShapeError(f"{op}: the index has shape {index.shape}, x {x.shape}; {expected}")


def _gather_infer(x: TensorSpec, index: TensorSpec, *, axis: int) -> TensorSpec:
    _along_infer("gather_elements", x, index, axis)
    return TensorSpec(index.shape, x.dtype, x.device)


def _key(op: str, shape: tuple[int, ...], index: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    grids: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    grids[axis] = _inside(op, index, shape[axis], axis % len(shape))
    return tuple(grids)


def _gather_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, index = ctx.inputs
    zeros = Tensor._wrap(np.zeros(x.shape, storage_of(ct.dtype)), None, ct.device)
    return apply("scatter_elements", zeros, index, ct, axis=ctx.attrs["axis"], reduction="add"), None


_I = np.array([[2, 0, 1], [1, -1, 1]], np.int64)
define(
    "gather_elements",
    _gather_infer,
    lambda x, index, axis: x[_key("gather_elements", x.shape, index, axis)],
    _gather_vjp,
    OnnxRule("GatherElements", {"axis": "axis"}),
    lambda: [Sample((noise(3, 4), _I), {"axis": 0}), Sample((noise(3, 4), _I), {"axis": -1})],
    lambda: [
        ErrorSample((noise(3, 4), _I), {"axis": 2}, IndexError, "gather_elements: axis 2 is out of range"),
        ErrorSample((noise(3, 4), _I[0]), {"axis": 0}, ShapeError, "the index has shape .* expected 2 axes"),
        ErrorSample((noise(3, 4), noise(3, 4)), {"axis": 0}, DTypeError, "the index is float.* expected integers"),
    ],
    by_type=True,
    in_step=True,
)


def _differ(a: int, b: int) -> bool:
    """True for lengths that are surely not the same; counts of places are compared where they are known."""
    return a != b and equals(a, b) is not None


def _check_updates(op: str, x: TensorSpec, updates: TensorSpec, shape: tuple[int, ...], reduction: str) -> None:
    choice(op, "reduction", reduction, tuple(REDUCTIONS))
    if updates.dtype != x.dtype:
        raise DTypeError(f"{op}: the updates are {updates.dtype}, x is {x.dtype}; expected one dtype")
    if len(updates.shape) != len(shape) or any(_differ(a, b) for a, b in zip(updates.shape, shape, strict=True)):
        raise ShapeError(f"{op}: the updates have shape {updates.shape}; expected {shape}")


def _placed(x: np.ndarray, key: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    """A copy of x with updates at places: the last one of several for a place, or all combined."""
    out = np.array(x)
    combine = REDUCTIONS[reduction]
    if combine is None:
        # NumPy walks negative strides backwards, but of several values for one place the last must win
        out[tuple(np.ascontiguousarray(i).reshape(i.shape) for i in key)] = updates
    else:
        combine.at(out, key, updates)
    return out


def _scatter_infer(x: TensorSpec, index: TensorSpec, updates: TensorSpec, *, axis: int, reduction: str) -> TensorSpec:
    _along_infer("scatter_elements", x, index, axis)
    _check_updates("scatter_elements", x, updates, index.shape, reduction)
    return x


def _scatter(x: np.ndarray, index: np.ndarray, updates: np.ndarray, axis: int, reduction: str) -> np.ndarray:
    return _placed(x, _key("scatter_elements", x.shape, index, axis), updates, reduction)


def _scatter_vjp(ctx: Any, ct: Tensor) -> tuple:
    _, index, updates = ctx.inputs
    axis = ctx.attrs["axis"]

    def put(base: Tensor, values: Tensor, reduction: str) -> Tensor:
        return apply("scatter_elements", base, index, values, axis=axis, reduction=reduction)

    return _update_vjp(ctx, ct, put, lambda t: apply("gather_elements", t, index, axis=axis), updates)


def _update_vjp(ctx: Any, ct: Tensor, put: Any, take: Any, updates: Tensor) -> tuple:
    """Gradients of (x, index, updates), from the functions that put updates at the places and take elements there."""
    x, y, reduction = ctx.inputs[0], ctx.outputs[0], ctx.attrs["reduction"]
    if reduction == "none":  # of several updates of a place the last one counts
        order = Tensor._wrap(np.arange(updates.size, dtype=np.int64).reshape(updates.shape), None, x.device)
        last = put(Tensor._wrap(np.full(x.shape, -1, np.int64), None, x.device), order, "max")
        return masked(ct, last < 0), None, masked(take(ct), take(last) == order)
    if reduction == "add":
        return ct, None, take(ct)
    if reduction == "mul":
        ones = Tensor._wrap(np.ones(x.shape, storage_of(ct.dtype)), None, ct.device)
        factors = put(ones, updates, "mul")
        return ct * factors, None, take(ct * y) / updates
    chosen = apply("logical_and", take(y) == updates, take(x) != updates)  # ties go to x
    return masked(ct, x == y), None, masked(take(ct), chosen)


def _scatter_samples() -> Iterator[Sample]:
    unique = np.array([[2, 0, 1], [1, 2, 0]], np.int64)
    for reduction in REDUCTIONS:
        yield Sample((noise(3, 4), unique, noise(2, 3)), {"axis": 0, "reduction": reduction})
    yield Sample((noise(3, 4), _I, noise(2, 3)), {"axis": -1, "reduction": "add"})
    yield Sample((noise(3, 4), _I, noise(2, 3)), {"axis": 1, "reduction": "none"})
    yield Sample((noise(0, 4), np.zeros((0, 2), np.int64), noise(0, 2)), {"axis": 1, "reduction": "mul"})


def _scatter_errors() -> Iterator[ErrorSample]:
    x, updates = noise(3, 4), noise(2, 3)
    options = {"axis": 0, "reduction": "none"}
    yield ErrorSample((x, _I, updates), {"axis": 0, "reduction": "ad"}, ValueError, "did you mean 'add'")
    yield ErrorSample((x, _I, updates[0]), options, ShapeError, r"the updates have shape \(3,\); expected \(2, 3\)")
    yield ErrorSample((x, _I, updates.astype(np.int32)), options, DTypeError, "the updates are int32, x is float")


define(
    "scatter_elements",
    _scatter_infer,
    _scatter,
    _scatter_vjp,
    ONNX_WRITER,
    _scatter_samples,
    _scatter_errors,
    in_step=True,
)


def _nd_infer(x: TensorSpec, index: TensorSpec, updates: TensorSpec, *, reduction: str) -> TensorSpec:
    _check_index("scatter_nd", index)
    if not index.shape or index.shape[-1] > x.ndim:
        raise ShapeError(f"scatter_nd: the index has shape {index.shape}, x {x.shape}; expected [..., 0 to {x.ndim}]")
    _check_updates("scatter_nd", x, updates, index.shape[:-1] + x.shape[index.shape[-1] :], reduction)
    return x


def _columns(x: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(_inside("scatter_nd", index[..., k], x.shape[k], k) for k in range(index.shape[-1]))


def _nd_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, index, updates = ctx.inputs
    depth = index.shape[-1]
    flat = apply("reshape", index, shape=(index.size // depth if depth else 1, depth))
    columns = [
        apply("reshape", column, shape=index.shape[:-1])
        for column in (apply("split", flat, sections=(1,) * depth, axis=1) if depth > 1 else (flat,))
    ]
    pattern = ("i",) * depth + ((None, None, None),) * (x.ndim - depth)

    def put(base: Tensor, values: Tensor, reduction: str) -> Tensor:
        return apply("scatter_nd", base, index, values, reduction=reduction)

    return _update_vjp(ctx, ct, put, lambda t: apply("index", t, *columns, pattern=pattern), updates)


def _nd_samples() -> Iterator[Sample]:
    places, cells = np.array([[2], [0]], np.int64), np.array([[2, 1], [0, -1], [1, 1]], np.int64)
    for reduction in REDUCTIONS:
        yield Sample((noise(3, 4), cells, noise(3)), {"reduction": reduction})
        yield Sample((noise(3, 4), places, noise(2, 4)), {"reduction": reduction})
    yield Sample((noise(3, 4), np.array([[[1]], [[1]]], np.int64), noise(2, 1, 4)), {"reduction": "add"})


def _nd_errors() -> Iterator[ErrorSample]:
    x, index = noise(3, 4), np.array([[3]], np.int64)
    options = {"reduction": "none"}
    yield ErrorSample((x, index[..., None, [0, 0, 0]], noise(1)), options, ShapeError, r"expected \[..., 0 to 2\]")
    yield ErrorSample((x, index, noise(4)), options, ShapeError, r"the updates have shape \(4,\); expected \(1, 4\)")


define(
    "scatter_nd",
    _nd_infer,
    lambda x, index, updates, reduction: _placed(x, _columns(x, index), updates, reduction),
    _nd_vjp,
    ONNX_WRITER,
    _nd_samples,
    _nd_errors,
)
