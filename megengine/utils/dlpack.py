"""Tensors of other packages, without a copy on their side."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.errors import DTypeError
from megengine.device import normalize
from megengine.kernels.cuda.runtime import runtime_of
from megengine.tensor import Tensor

_CUDA = 2  # DLPack's number for the memory of NVIDIA GPUs
__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Tensor, stream: int | None = None) -> Any:
    """A DLPack capsule of a copy of a tensor: it can be taken once. Raises DTypeError for anything else."""
    if not isinstance(tensor, Tensor):
        raise DTypeError(f"to_dlpack: got {type(tensor).__name__}; expected a Tensor")
    return tensor.__dlpack__(stream=stream)


class _Capsule:
    """An object through which NumPy takes a bare capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # main memory


def from_dlpack(ext_tensor: Any, stream: int | None = None) -> Tensor:
    """A tensor with the values of a DLPack capsule, or of an object with `__dlpack__` (a torch tensor, an array).

    The values are copied: tensors are values. Those on a GPU are not, since programs give each other much there: write
    to them no more. Raises DTypeError for anything else.
    """
    capsule = type(ext_tensor).__name__ == "PyCapsule"
    if not capsule and not hasattr(ext_tensor, "__dlpack__"):
        raise DTypeError(f"from_dlpack: got {type(ext_tensor).__name__}; expected a DLPack capsule, or __dlpack__")
    kind, number = (1, 0) if capsule else ext_tensor.__dlpack_device__()
    if kind == _CUDA:
        device = normalize(f"gpu{number}")
        return Tensor._wrap(runtime_of(device).from_dlpack(ext_tensor))
    try:
        array = np.from_dlpack(_Capsule(ext_tensor) if capsule else ext_tensor)
    except (BufferError, RuntimeError, TypeError, ValueError) as exc:
        raise DTypeError(
            f"from_dlpack: {exc}; expected numbers that NumPy knows, in main memory and without a gradient: "
            "convert them first, such as with .float() to float32, .cpu(), .detach()"
        ) from exc
    return Tensor(array, dtype=array.dtype)
