"""DeviceArray: the storage of a tensor on a GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core.errors import DeviceError


class DeviceArray:
    """A dense array in C order in the memory of a device. Python reads no element of it; `numpy()` copies it.

    `owner` keeps the memory alive: arrays of other shapes on the same memory share it. `runtime` is the device's.
    """

    __slots__ = ("__weakref__", "address", "dtype", "owner", "runtime", "shape", "size")

    def __init__(self, runtime: Any, owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.runtime, self.owner, self.address, self.shape, self.dtype = runtime, owner, address, shape, dtype
        self.size = math.prod(shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        return tuple(math.prod(self.shape[axis + 1 :]) * self.dtype.itemsize for axis in range(len(self.shape)))

    def reshape(self, shape: tuple[int, ...]) -> DeviceArray:
        """The same elements in another shape of as many, in the same memory."""
        assert math.prod(shape) == self.size, (self.shape, shape)
        return DeviceArray(self.runtime, self.owner, self.address, tuple(shape), self.dtype)

    def view(self, dtype: Any) -> DeviceArray:
        """The same bits as numbers of another dtype of the same size."""
        dtype = np.dtype(dtype)
        assert dtype.itemsize == self.dtype.itemsize, (self.dtype, dtype)
        return DeviceArray(self.runtime, self.owner, self.address, self.shape, dtype)

    def numpy(self) -> np.ndarray:
        """A copy in main memory; waits for what computes it. Raises what a kernel refused since the last wait."""
        return self.runtime.download(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.size else 0, False),
            "version": 3,
        }

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise DeviceError(
            f"an array of {self.runtime.name} was given to code for main memory; copy it by .numpy() first"
        )

    def __repr__(self) -> str:
        return f"DeviceArray({self.shape}, {self.dtype}, {self.runtime.name})"
