"""`Tensor(x)` and `Tensor([1, x, 1])` as a function of traced values, which graphs record."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import device as devices
from megengine.core.dtype import DType, QuantizedDType, as_dtype, storage_of
from megengine.core.errors import DTypeError
from megengine.core.types import DTypeLike
from megengine.dispatch import apply, public
from megengine.ops.casting import astype, detach
from megengine.ops.joining import stacked
from megengine.tensor import Tensor


@public(home="megengine.tensor", recorded_as="__new__")
def tensor(data: Any, dtype: DTypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor of a number, array or tensor, or of nested sequences of them, as `Tensor(data)` makes it.

    Gradients flow to a tensor that is copied, and not into sequences, as in MegEngine.
    """
    target = None if dtype is None else as_dtype(dtype)
    if isinstance(data, Tensor):
        copy = apply("copy", data, device=data.device if device is None else devices.normalize(device))
        return copy if target in (None, copy.dtype) else _cast(copy, target)
    joined = _joined(data, Tensor(_outline(data), target).dtype)
    return detach(joined if device is None else apply("copy", joined, device=devices.normalize(device)))


def _outline(data: Any) -> Any:
    """The same nesting with zeros in place of tensors, which has the shape and dtype of the result."""
    if isinstance(data, Tensor):
        return np.zeros(data.spec.shape, storage_of(data.dtype))
    return [_outline(v) for v in data] if isinstance(data, (list, tuple)) else data


def _joined(data: Any, kind: DType) -> Tensor:
    if isinstance(data, Tensor):
        return _cast(data, kind)
    if not _has_tensor(data):
        return Tensor(data, kind)
    return stacked([_joined(v, kind) for v in data])


def _has_tensor(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_has_tensor, data))
    return isinstance(data, Tensor)


def _cast(x: Tensor, kind: DType) -> Tensor:
    """Numbers in another dtype. Quantized dtypes are refused: their integers are not their values."""
    if isinstance(kind, QuantizedDType) or isinstance(x.dtype, QuantizedDType):
        raise DTypeError(f"tensor: {x.dtype} to {kind} while a model is traced; expected no scale; use astype")
    return astype(x, kind)
