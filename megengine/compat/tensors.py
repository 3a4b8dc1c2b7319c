"""Helpers of `megengine.core.tensor.utils`: shapes, scalars and dtypes of the arguments of operators."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.dtype import as_dtype, storage_of
from megengine.core.errors import ArgumentError, AxisError, ShapeError, brief
from megengine.core.text import counted
from megengine.device import CompNode
from megengine.functional.helpers import dtype_promotion
from megengine.tensor import Tensor

_converts = [True]


def make_shape_tuple(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of integers: of one integer, a tensor of them, or several of both.

    Raises ShapeError for anything else.
    """
    if not isinstance(shape, (list, tuple)):
        shape = (shape,)
    lengths: list[int] = []
    for item in shape:
        array = np.asarray(item.numpy() if isinstance(item, Tensor) else item)
        if array.ndim > 1 or isinstance(item, (list, tuple)) or array.dtype.kind not in "iu":
            raise ShapeError(f"make_shape_tuple: got {brief(item)}; expected integers, or flat tensors of them")
        lengths += [int(n) for n in array.reshape(-1)]
    return tuple(lengths)


def isscalar(x: Any) -> bool:
    """True for numbers, texts and tensors without axes."""
    return x.ndim == 0 if isinstance(x, Tensor) else bool(np.isscalar(x))


def astensor1d(x: Any, *reference: Tensor, dtype: Any = None, device: Any = None) -> Tensor:
    """A flat tensor: of one, or of numbers and tensors in a list. `reference` is not needed.

    Raises ShapeError for more axes, ArgumentError for other objects.
    """
    if isinstance(x, (Tensor, np.ndarray)):
        if x.ndim > 1:
            raise ShapeError(f"astensor1d: got {counted(x.ndim, 'axis')}, shape {tuple(x.shape)}; expected at most one")
        flat = Tensor(x, device=device) if isinstance(x, np.ndarray) else x
    elif not isinstance(x, Sequence):
        raise ArgumentError(f"astensor1d: got {brief(x)}; expected a tensor, or a list of numbers and tensors")
    elif any(isinstance(item, Tensor) for item in x):
        parts = [item if isinstance(item, Tensor) else Tensor(item) for item in x]
        common = dtype_promotion(parts)
        flat = F.concat([F.reshape(part.astype(common), -1) for part in parts])
    else:
        flat = Tensor(np.asarray(x, None if dtype is None else storage_of(as_dtype(dtype))), device=device)
    return flat if dtype is None else flat.astype(dtype)


def Const(value: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of a constant."""
    return Tensor(np.asarray(value), dtype=dtype, device=device)


def convert_single_value(v: Any, *, dtype: Any = None, device: Any = None) -> Tensor | None:
    """A tensor of that dtype; None stays None."""
    if v is None:
        return None
    if isinstance(v, Tensor):
        return v if dtype is None else v.astype(dtype)
    return Const(v, dtype, device)


def convert_inputs(*args: Any, device: Any = None) -> tuple[Any, ...]:
    """Tensors and numbers as tensors of the dtype that an operator computes in; None stays None."""
    values = [a for a in args if a is not None]
    dtype = dtype_promotion([a if isinstance(a, Tensor) else np.asarray(a, np.float32) for a in values])
    return tuple(convert_single_value(a, dtype=dtype, device=device) for a in args)


def cast_tensors(*args: Tensor | None, promote: bool = False) -> tuple[Any, ...]:
    """Tensors in float16; with `promote` in float32. None stays None."""
    dtype = "float32" if promote else "float16"
    return tuple(None if a is None else a.astype(dtype) for a in args)


def result_type(*args: Any) -> np.dtype:
    """NumPy's dtype of a result of arrays, dtypes and tensors."""
    return np.result_type(*(storage_of(a.dtype) if isinstance(a, Tensor) else a for a in args))


def normalize_axis(ndim: int, axis: int | Iterable[int], reverse: bool = False) -> int | list[int]:
    """Axes counted from the front, in order. Raises AxisError for one that does not exist or is named twice."""
    single = isinstance(axis, (int, numbers.Integral))
    items = [axis] if single else list(axis)
    for item in items:
        if not -ndim <= item < ndim:
            raise AxisError(f"axis {item} is out of bounds for tensor of dimension {ndim}")
    axes = sorted((int(item) % ndim for item in items), reverse=reverse)
    if len(set(axes)) != len(axes):
        raise AxisError(f"axis {items} contains duplicated indices")
    return axes[0] if single else axes


def as_device(obj: Any) -> CompNode:
    """A device by name."""
    return CompNode(obj)


def get_convert_inputs() -> bool:
    """The flag that was set last."""
    return _converts[0]


def set_convert_inputs(flag: bool) -> bool:
    """Keep the flag, and return the one before; operators convert their inputs in any case."""
    before, _converts[0] = _converts[0], bool(flag)
    return before


# MegEngine's second names
astype_cpp, getitem_cpp = Tensor.astype, Tensor.__getitem__
reshape_cpp, transpose_cpp = Tensor.reshape, Tensor.transpose
astensor1d_cpp, convert_inputs_cpp, convert_single_value_cpp = astensor1d, convert_inputs, convert_single_value
_get_convert_inputs, _set_convert_inputs, _normalize_axis = get_convert_inputs, set_convert_inputs, normalize_axis


def setitem_cpp(x: Tensor, index: Any, value: Any) -> Tensor:
    """A copy of x with `x[index] = value`."""
    copy = F.copy(x)
    copy[index] = value
    return copy


def matmul_cpp(
    a: Any, b: Any, a_ndim: Any = None, b_ndim: Any = None, transpose_a: Any = False, transpose_b: Any = False, *_: Any
) -> Tensor:
    """The product of two matrices, each transposed on demand; the numbers of axes come from the matrices."""
    return F.matmul(a, b, bool(transpose_a), bool(transpose_b))


batched_matmul_cpp = matmul_cpp
