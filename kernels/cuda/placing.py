"""Values between devices: arrays of main memory for the processor, DeviceArrays for GPUs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import runtime_of
from megengine.kernels.cuda.sources import Program, program, type_name


def on_gpu(device: str) -> bool:
    """Whether a device, by its name, is a GPU."""
    return device.startswith("gpu")


def host(storage: Any) -> np.ndarray:
    """The values in main memory; a copy where they lie on a GPU."""
    return storage.numpy() if type(storage) is DeviceArray else storage


def placed(storage: Any, device: str) -> Any:
    """The values as the storage of a tensor on a device: themselves where they lie there."""
    if type(storage) is DeviceArray:
        if storage.runtime.name == device:
            return storage
        storage = storage.numpy()
    if not on_gpu(device):
        return storage
    array = np.asarray(storage)
    return _number(device, array.dtype, array.tobytes()) if array.ndim == 0 else runtime_of(device).upload(array)


def copied(storage: Any, device: str) -> Any:
    """The values on a device, in memory of their own."""
    if type(storage) is not DeviceArray:
        return placed(storage, device) if on_gpu(device) else storage.copy()
    if storage.runtime.name == device:
        return storage.runtime.duplicate(storage)
    return placed(storage.numpy(), device)


def filled(shape: tuple[int, ...], dtype: np.dtype, value: Any, device: str) -> DeviceArray:
    """A new array of a GPU with one value everywhere; None stands for zero."""
    runtime = runtime_of(device)
    if value is None:
        return runtime.zeros(shape, dtype)
    out = runtime.empty(shape, dtype)
    unit = dtype if dtype.kind in "biuf" and dtype.itemsize != 2 else np.dtype(f"u{min(dtype.itemsize, 8)}")
    if dtype.itemsize > 8:
        return runtime.upload(np.full(shape, value, dtype))
    bits = np.asarray(value).astype(dtype).view(unit)[()]
    runtime.each(
        program("filling.cu", TYPE=type_name(unit)), "fill", out.size, (out.view(unit), bits, np.int64(out.size))
    )
    return out


@functools.lru_cache(maxsize=1024)
def _kept_number(runtime: Any, dtype: np.dtype, bits: bytes) -> DeviceArray:
    return runtime.upload(np.frombuffer(bits, dtype).reshape(()))


def _number(device: str, dtype: np.dtype, bits: bytes) -> DeviceArray:
    """A single number on a GPU, kept for the next use: programs name the same ones again and again."""
    return _kept_number(runtime_of(device), dtype, bits)


@functools.lru_cache(maxsize=1024)
def _kept_positions(runtime: Any, shape: tuple[int, ...]) -> DeviceArray:
    return runtime.upload(np.arange(math.prod(shape), dtype=np.int32).reshape(shape))


def positions(shape: tuple[int, ...], device: str) -> DeviceArray:
    """int32 numbers from 0 on, on a GPU, which keeps them for the next use: nothing waits for a copy."""
    return _kept_positions(runtime_of(device), shape)


def programs() -> Iterator[Program]:
    """Every program of this file."""
    for unit in ("?", "i1", "u1", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
        yield program("filling.cu", TYPE=type_name(np.dtype(unit)))
