"""Shape, dtype and device of a tensor, without its value."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from megengine.core.dtype import DType
from megengine.core.sizes import closed, is_open


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The spec of a tensor. Hashable: kernels are chosen and memoised by it."""

    shape: tuple[int, ...]
    dtype: DType
    device: str = "cpu0"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense value."""
        return self.size * self.dtype.itemsize

    @property
    def example(self) -> TensorSpec:
        """The spec with open sizes as they are at the example."""
        return TensorSpec(closed(self.shape), self.dtype, self.device) if is_open(self.shape) else self

    @property
    def open_axes(self) -> tuple[int, ...]:
        """The axes whose lengths follow from open sizes."""
        return tuple(axis for axis, length in enumerate(self.shape) if is_open(length))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@functools.lru_cache(maxsize=4096)
def interned(shape: tuple[int, ...], dtype: DType, device: str) -> TensorSpec:
    """The spec, mostly the same object for equal arguments: memoised calls are found by identity first."""
    return TensorSpec(shape, dtype, str.__str__(device))  # not a name that prints as another
