"""Shared by the op files: conversion of operands, dtype rules, shape arithmetic, argument checks."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from megengine.core.dtype import DType, QuantizedDType, bfloat16, is_float, storage_of
from megengine.core.errors import ArgumentError, AxisError, DTypeError, OptionError, ShapeError, brief, nearest
from megengine.core.sizes import OpenSize, broadcast, is_open
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import apply, mixed
from megengine.tensor import Tensor

# one integer, several, or (while shapes are traced) a tensor of them
Integers = int | Sequence[int] | Tensor
Axes = Integers | None

FLOAT32 = np.dtype(np.float32)
INT32 = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)
POOLINGS = ("max", "average")  # ways to combine the elements of a cell
_NARROW = (np.int8, np.int16, np.int32, np.uint8, np.uint16)  # NumPy's numbers of these dtypes keep them


def lift_plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """`Op.lift` of ops whose attributes name no axis."""
    return dict(attrs)


def lift_axes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """`Op.lift` of ops with the attribute `axis`: an integer, several or None."""
    axis = attrs["axis"]
    axes = (axis,) if isinstance(axis, int) else axis
    moved = None if axes is None else tuple(a if a < 0 else a + 1 for a in axes)
    return {**attrs, "axis": moved[0] if isinstance(axis, int) and moved else moved}


def as_tensor(value: Any, *, like: Tensor | None = None) -> Tensor:
    """A tensor from a tensor, an array or a number; numbers take the dtype of `like` where they fit it."""
    if isinstance(value, Tensor):
        return value
    if like is None:
        return Tensor(value)
    if isinstance(value, numbers.Number) and isinstance(like.dtype, np.dtype):
        array = np.asarray(value)
        if array.dtype != object:  # a number of more than 64 bits is refused below
            return Tensor._wrap(array.astype(number_dtype(value, like.dtype)), None, like.device)
    array = Tensor(value)._storage()
    if isinstance(like.dtype, np.dtype) and _adapts(value, array, like.dtype):
        array = array.astype(like.dtype)
    return Tensor._wrap(array, None, like.device)


def _adapts(value: Any, array: np.ndarray, dtype: np.dtype) -> bool:
    """Whether what is no tensor becomes an operand in the tensor's dtype: lists, and whole numbers beside floats."""
    if isinstance(value, (list, tuple)):
        return _holds(dtype, array)
    return is_float(dtype) and array.dtype.kind in "biu"


def _holds(dtype: np.dtype, array: np.ndarray) -> bool:
    """Whether a list becomes an operand in `dtype`: float16 takes any numbers, integers those that fit.

    MegEngine casts lists to the tensor's dtype; where that would cut real numbers, the wider dtype is kept here.
    """
    if is_float(dtype):
        return array.dtype != BOOL
    if BOOL in (dtype, array.dtype) or is_float(array.dtype):
        return False
    bounds = np.iinfo(dtype)
    return not array.size or (bounds.min <= array.min() and array.max() <= bounds.max)


def number_dtype(value: Any, dtype: np.dtype) -> np.dtype:
    """The dtype that a Python number gets as the other operand of a tensor of `dtype`."""
    if isinstance(value, complex):
        raise DTypeError(f"complex number {value} is not supported; expected a real number")
    if type(value) is np.float32 or (type(value) in _NARROW and not is_float(dtype)):
        return promote("number", dtype, value.dtype)
    if isinstance(value, (bool, np.bool_)) or is_float(dtype):
        return dtype
    return FLOAT32 if dtype == BOOL or not isinstance(value, numbers.Integral) else dtype


def promote(op: str, a: DType, b: DType) -> np.dtype:
    """The common dtype of two operands: float32 for a boolean with any other, and for a half float with an integer."""
    if isinstance(a, QuantizedDType) or isinstance(b, QuantizedDType):
        raise DTypeError(f"{op}: operands are {a} and {b}; quantized tensors must be dequantized first (.astype)")
    if a == b:
        return a
    if is_float(a) != is_float(b):
        wide = a if is_float(a) else b
        return wide if wide.itemsize > 2 else FLOAT32
    if BOOL in (a, b):
        return FLOAT32
    if bfloat16 in (a, b):
        other = b if a == bfloat16 else a
        return FLOAT32 if other == np.float16 else other
    return np.promote_types(a, b)


def operands(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Both operands as tensors of one dtype."""
    if not isinstance(x, Tensor):
        y = as_tensor(y)
        x = as_tensor(x, like=y)
    elif not isinstance(y, Tensor):
        y = as_tensor(y, like=x)
    if x._dtype is y._dtype and x._dtype.__class__ is not QuantizedDType:  # plain dtypes are single objects
        return x, y
    dtype = promote(op, x.dtype, y.dtype)
    return cast(x, dtype), cast(y, dtype)


def factors(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Both operands of a layer as tensors of one dtype."""
    if isinstance(x, Tensor) and isinstance(y, Tensor) and x._dtype is not y._dtype:
        x, y = mixed.lowered_beside(x, y)
    return operands(op, x, y)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """X in another dtype; x itself if it has that dtype."""
    return x if x.dtype == dtype else apply("cast", x, dtype=dtype)


def floating(x: Any) -> Tensor:
    """X as a tensor of a float dtype: integers and booleans become float32."""
    x = as_tensor(x)
    if x._dtype is FLOAT32 or isinstance(x.dtype, QuantizedDType):  # the op's infer refuses the latter itself
        return x
    return x if is_float(x.dtype) else cast(x, FLOAT32)


def finite(x: Tensor) -> Tensor:
    """X with the largest numbers of its float dtype for infinities: a difference from them is never NaN."""
    most = float(ml_dtypes.finfo(storage_of(x.dtype)).max)
    return apply("clip", x, lo=-most, hi=most)


def rounded_to(y: Tensor, dtype: Any) -> Tensor:
    """Y in `dtype`: for an integer type rounded, half away from zero, and clipped."""
    if is_float(dtype):
        return cast(y, dtype)
    bounds = np.iinfo(dtype)
    return cast(apply("clip", apply("round", y), lo=float(bounds.min), hi=float(bounds.max)), dtype)


def refuse_quantized(op: str, *specs: TensorSpec) -> None:
    """Raise DTypeError for a quantized operand: the arithmetic of the op needs real values."""
    for spec in specs:
        if isinstance(spec.dtype, QuantizedDType):
            raise DTypeError(f"{op}: got a tensor of {spec.dtype}; expected real numbers; dequantize it first")


def broadcast_shapes(op: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's broadcast of shapes, with the op named in the error."""
    try:
        plain = np.broadcast_shapes(*shapes)
        return broadcast(shapes) if is_open(shapes) else plain
    except ValueError:
        texts = " and ".join(map(str, shapes))
        raise ShapeError(f"{op}: shapes {texts} do not broadcast; expected equal lengths or 1 on every axis") from None


def normalize_axis(op: str, axis: int, ndim: int) -> int:
    """A non-negative axis, checked."""
    if not isinstance(axis, numbers.Integral):
        raise ArgumentError(f"{op}: axis is {brief(axis)}; expected an integer")
    if not -ndim <= axis < ndim:
        raise AxisError(f"{op}: axis {axis} is out of range for {counted(ndim, 'axis')}; expected {-ndim}..{ndim - 1}")
    return int(axis) % ndim


def names_only_axis(axis: Any, ndim: int) -> bool:
    """Whether this is the axis 0 or -1 of a tensor without axes, which reductions take as NumPy and MegEngine do."""
    return ndim == 0 and isinstance(axis, numbers.Integral) and axis in (0, -1)


def normalize_axes(op: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Sorted non-negative axes from None, an integer or a sequence."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, numbers.Integral):
        return (normalize_axis(op, int(axis), ndim),)
    items = axis.reshape(-1).tolist() if isinstance(axis, (Tensor, np.ndarray)) else axis
    if not isinstance(items, (tuple, list)):
        raise ArgumentError(f"{op}: axis is {brief(axis)}; expected an integer or several")
    axes = sorted(normalize_axis(op, a, ndim) for a in items)
    if len(set(axes)) != len(axes):
        raise OptionError(f"{op}: axis {axis} names one axis twice")
    return tuple(axes)


def listed(value: Integers) -> list[Any]:
    """One integer, or several, as a list."""
    return [value] if isinstance(value, (int, numbers.Integral)) else list(value)


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """Shape after reducing `axes`."""
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def pair(op: str, argument: str, value: Any) -> tuple[int, int]:
    """(height, width) from an integer or two of them.

    Integer tensors (parts of a traced shape) and whole floats, as `padding=k / 2`, count as integers.
    """
    height, width = tuple_of(op, argument, value, 2)
    return height, width


_LARGEST = 2**31 - 1  # the largest integer of native code


def _moderate(op: str, argument: str, values: Any) -> Any:
    """The integers, which native code can represent. Raises OptionError for larger ones."""
    if max(map(abs, values), default=0) > _LARGEST:
        raise OptionError(f"{op}: {argument} is {brief(values)}; expected integers of at most {_LARGEST}")
    return values


def integer(op: str, argument: str, value: Any) -> int:
    """The value of an integer, of NumPy's too, or of a whole float. Raises ArgumentError for anything else."""
    if not _is_integer(value):
        raise ArgumentError(f"{op}: {argument} is {brief(value)}; expected an integer")
    return int(value)


def _is_integer(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.shape and isinstance(value.dtype, np.dtype) and value.dtype.kind in "iu"
    return isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer())


def pad_pairs(op: str, value: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """((top, bottom), (left, right)) from an integer, (height, width), four numbers, or the pairs themselves."""
    if isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, (tuple, list)) for v in value):
        return (pair(op, "padding", value[0]), pair(op, "padding", value[1]))
    if isinstance(value, (tuple, list)) and len(value) == 4:
        top, bottom, left, right = _moderate(op, "padding", [int(v) for v in value])
        return ((top, bottom), (left, right))
    h, w = pair(op, "padding", value)
    return ((h, h), (w, w))


def unbroadcast(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum x over the axes along which a tensor of `shape` was broadcast to it."""
    have = x.spec.shape
    if have == shape:
        return x
    lead = len(have) - len(shape)
    axes = tuple(range(lead)) + tuple(i + lead for i, n in enumerate(shape) if n == 1 and have[i + lead] != 1)
    if axes:
        x = apply("sum", x, axis=axes, keepdims=False)
    return x if x.spec.shape == shape else apply("reshape", x, shape=shape)


def choice(op: str, argument: str, value: Any, allowed: Sequence[str], *, any_case: bool = False) -> str:
    """An option by name, checked; the error names the nearest one. With `any_case`, capitals do not matter."""
    if not isinstance(value, str):
        raise ArgumentError(f"{op}: {argument} is {brief(value)}; expected one of {sorted(allowed)}")
    if value not in allowed:
        alike = [name for name in allowed if any_case and name.lower() == value.lower()]
        if alike:
            return alike[0]
        hint = nearest(value, allowed)
        raise OptionError(f"{op}: {argument} is {value!r}; expected one of {sorted(allowed)}{hint}")
    return value


def check_modes(op: str, conv_mode: str = "cross_correlation", compute_mode: str = "default") -> None:
    """Raise OptionError for an unknown conv_mode or compute_mode."""
    if conv_mode != "cross_correlation":
        choice(op, "conv_mode", conv_mode, ("cross_correlation",), any_case=True)
    if compute_mode != "default":
        choice(op, "compute_mode", compute_mode, ("default", "float32"), any_case=True)


def tuple_of(op: str, argument: str, value: Any, n: int) -> tuple[int, ...]:
    """N integers from one, or from a sequence of them; whole floats count as integers."""
    several = isinstance(value, (tuple, list)) or (isinstance(value, Tensor) and value.ndim == 1)
    items: tuple[Any, ...] = tuple(value) if several else (value,) * n
    if len(items) != n or not all(_is_integer(v) for v in items):
        raise ArgumentError(f"{op}: {argument} is {brief(value)}; expected an integer or {n} of them")
    return _moderate(op, argument, tuple(int(v) for v in items))


def require_bool(op: str, *operands: Tensor) -> None:
    """Raise unless all operands are boolean."""
    for t in operands:
        if t.dtype != BOOL:
            raise DTypeError(f"{op}: an operand is {t.dtype}; expected bool; compare first, or use .astype")


def masked(ct: Tensor, condition: Tensor) -> Tensor:
    """The cotangent where the boolean `condition` holds, else zero, also if it is infinite: a root has such a slope."""
    zero = Tensor._wrap(np.zeros((), storage_of(ct.dtype)), None, ct.device)
    return apply("where", condition, ct, zero)


def sample_values(*shape: int, low: float = -3.0, high: float = 3.0, seed: int = 0) -> np.ndarray:
    """Uniform float64 values in [low, high) of this shape, the same for one seed."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape)


def noise(*shape: int) -> np.ndarray:
    """Standard normal float64 values of this shape, the same at each call."""
    return np.random.default_rng(list(shape)).standard_normal(shape)


def counting(count: int, dtype: Any = np.int64, device: str = "cpu0") -> Tensor:
    """The numbers from 0 on, so many of them; made by ops where the count is an open size."""
    if not isinstance(count, OpenSize):
        return Tensor._wrap(np.arange(count, dtype=dtype), None, device)
    one = Tensor._wrap(np.ones((), dtype), None, device)
    return apply("sub", apply("cumsum", apply("broadcast_to", one, shape=(count,)), axis=0, reverse=False), one)


def size_tensor(size: int, dtype: Any = np.int64, device: str = "cpu0") -> Tensor:
    """A size as a scalar; an open one is the sum of so many ones."""
    if not isinstance(size, OpenSize):
        return Tensor._wrap(np.array(size, dtype), None, device)
    ones = apply("broadcast_to", Tensor._wrap(np.ones((), dtype), None, device), shape=(size,))
    return apply("sum", ones, axis=(0,), keepdims=False)
