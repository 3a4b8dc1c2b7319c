"""New tensors: filled, ranges, the identity."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import device as devices
from megengine.core import _engine
from megengine.core.dtype import as_dtype, storage_of
from megengine.core.errors import ArgumentError, OptionError, ShapeError, brief
from megengine.core.limits import refuse_oversized
from megengine.core.sizes import OpenSize, is_open, range_length
from megengine.core.types import DTypeLike, TensorLike
from megengine.dispatch import apply, public
from megengine.kernels.cuda.placing import filled, on_gpu
from megengine.ops.common import FLOAT32, Integers, as_tensor, cast, counting, size_tensor
from megengine.ops.shape import shape_argument
from megengine.tensor import Tensor

_HOME = "megengine.functional.tensor"
_NUMBERS = {int, float}


def _wrapped(array: np.ndarray, device: str | None = None) -> Tensor:
    """A tensor of a new array, which is not copied."""
    return _engine.wrap(array, None, _place(device))


def _place(device: str | None) -> str:
    return devices.default_device() if device is None else devices.normalize(device)


def _filled(op: str, shape: Any, dtype: Any, value: float | None, device: str | None) -> Tensor:
    """A tensor filled with a number that every dtype can represent; None means zero."""
    return _uniform(_lengths(op, shape), storage_of(as_dtype(dtype)), value, _place(device))


def _uniform(shape: tuple[int, ...], dtype: np.dtype, value: float | None, device: str) -> Tensor:
    """As `_filled`, of lengths that were checked; where one is open an op fills the tensor, for every length."""
    if OpenSize in map(type, shape):
        return _spread(np.full((), value or 0, dtype), shape, device)
    return _engine.filled(shape, dtype, value, device)


def _spread(value: np.ndarray, shape: tuple[int, ...], device: str) -> Tensor:
    return apply("broadcast_to", Tensor._wrap(value, None, device), shape=shape)


def _fill_dtype(value: Any, dtype: Any) -> np.dtype:
    if dtype is not None:
        return storage_of(as_dtype(dtype))
    if type(value) is float:
        return FLOAT32
    if isinstance(value, (bool, np.bool_)):
        return np.dtype(bool)
    return np.dtype(np.int32) if isinstance(value, numbers.Integral) else FLOAT32


def _lengths(op: str, shape: Any) -> tuple[int, ...]:
    """The shape of a new tensor, checked."""
    lengths = shape_argument((shape,), formulas=True)
    if min(lengths, default=0) < 0:
        raise ShapeError(f"{op}: shape is {brief(lengths)}; expected lengths of at least 0")
    refuse_oversized(op, lengths, 4)
    return lengths


@public(home=_HOME)
def full(shape: Integers, value: float, *, dtype: DTypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor filled with `value`, whose type determines the dtype unless `dtype` does."""
    value = value.item() if isinstance(value, Tensor) else value
    if not isinstance(value, (numbers.Number, np.bool_)) or (isinstance(value, int) and value.bit_length() > 63):
        raise ArgumentError(f"full: value is {brief(value)}; expected a number of at most 64 bits")
    kind = _fill_dtype(value, dtype)
    if type(value) is float and kind == FLOAT32:
        return _uniform(_lengths("full", shape), kind, value, _place(device))
    return _full(_lengths("full", shape), value, kind, _place(device))


def _full(shape: tuple[int, ...], value: Any, dtype: np.dtype, device: str) -> Tensor:
    """A tensor filled with any number. Raises OverflowError for one that the dtype does not hold."""
    if OpenSize in map(type, shape):
        return _spread(np.full((), value, dtype), shape, device)
    if on_gpu(device):
        return Tensor._wrap(filled(shape, dtype, np.full((), value, dtype), device), None, device)
    return _engine.wrap(np.full(shape, value, dtype), None, device)


@public(home=_HOME)
def zeros(shape: Integers, *, dtype: DTypeLike = "float32", device: str | None = None) -> Tensor:
    """A tensor of zeros."""
    return _filled("zeros", shape, dtype, None, device)


@public(home=_HOME)
def ones(shape: Integers, *, dtype: DTypeLike = "float32", device: str | None = None) -> Tensor:
    """A tensor of ones."""
    return _filled("ones", shape, dtype, 1, device)


@public(home=_HOME)
def zeros_like(inp: TensorLike) -> Tensor:
    """Zeros with the shape and dtype of `inp`."""
    x = as_tensor(inp)
    return _uniform(x.spec.shape, storage_of(x.dtype), None, x.device)


@public(home=_HOME)
def ones_like(inp: TensorLike) -> Tensor:
    """Ones with the shape and dtype of `inp`."""
    x = as_tensor(inp)
    return _uniform(x.spec.shape, storage_of(x.dtype), 1, x.device)


@public(home=_HOME)
def full_like(inp: TensorLike, value: float) -> Tensor:
    """`value` in the shape and dtype of `inp`."""
    x = as_tensor(inp)
    return _full(x.spec.shape, value, storage_of(x.dtype), x.spec.device)


@public(home=_HOME)
def arange(
    start: float = 0,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike = "float32",
    device: str | None = None,
) -> Tensor:
    """Numbers from start (inclusive) to stop (exclusive)."""
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise OptionError("arange: step is 0; expected a non-zero step")
    if not {type(first), type(last), type(step)} <= _NUMBERS:
        ends = [_formula(value) for value in (first, last, step)]
        if is_open(ends) and all(isinstance(value, int) for value in ends):
            return _open_range(ends[0], ends[1], ends[2], storage_of(as_dtype(dtype)), _place(device))
    span = (float(last) - float(first)) / float(step)
    if not math.isfinite(span):
        raise OptionError(f"arange: start={first}, stop={last}, step={step}; expected finite numbers")
    refuse_oversized("arange", (max(math.ceil(span), 0),), 16)
    return _wrapped(np.arange(first, last, step).astype(storage_of(as_dtype(dtype))), device)


def _formula(value: Any) -> Any:
    """A number, or the formula of a length that values tell."""
    size = value._sizes() if isinstance(value, Tensor) else None
    return size if isinstance(size, OpenSize) else value


def _whole(value: Any) -> int:
    size = _formula(value)
    return size if isinstance(size, OpenSize) else int(size)


def _open_range(first: int, last: int, step: int, dtype: np.dtype, device: str) -> Tensor:
    """Integers from `first` on before `last`, of which one is open, in any dtype."""
    made = counting(range_length(first, last, step), device=device)
    if step != 1:
        made = apply("mul", made, Tensor._wrap(np.array(step, np.int64), None, device))
    if is_open(first) or first:
        made = apply("add", made, size_tensor(first, device=device))
    return cast(made, dtype)


@public(home=_HOME)
def linspace(start: float, stop: float, num: int, *, dtype: DTypeLike = "float32", device: str | None = None) -> Tensor:
    """`num` evenly spaced numbers from start to stop, both included."""
    refuse_oversized("linspace", (max(int(num), 0),), 16)
    return _wrapped(np.linspace(float(start), float(stop), int(num)).astype(storage_of(as_dtype(dtype))), device)


@public(home=_HOME)
def eye(N: Integers, M: int | None = None, *, dtype: DTypeLike = "float32", device: str | None = None) -> Tensor:
    """The N x M matrix with ones on its diagonal; N may be the shape, (rows, columns) or (rows,)."""
    if isinstance(N, Sequence) or (isinstance(N, (Tensor, np.ndarray)) and N.ndim):
        lengths = shape_argument((N,), formulas=True)
        if M is not None or len(lengths) not in (1, 2):
            raise ShapeError(f"eye: N is {brief(lengths)}, M is {M}; expected integers, or a shape alone as N")
        N, M = lengths[0], lengths[-1]
    rows, columns = _lengths("eye", (_whole(N), _whole(N if M is None else M)))
    if is_open((rows, columns)):
        down, across = counting(rows, device=_place(device)), counting(columns, device=_place(device))
        equal = apply("equal", apply("reshape", down, shape=(rows, 1)), apply("reshape", across, shape=(1, columns)))
        return cast(equal, storage_of(as_dtype(dtype)))
    return _wrapped(np.eye(rows, columns, dtype=storage_of(as_dtype(dtype))), device)
