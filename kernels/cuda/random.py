"""Arrays of random numbers on a GPU: from one key the same bits as on the processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import runtime_of
from megengine.kernels.cuda.sources import Program, program, type_name

Draw = Callable[[], int]
_UNIFORM, _NORMAL, _FACTORS = range(3)
_OTHERS = (np.dtype(np.float64), np.dtype(np.float16), bfloat16)  # dtypes of factors beside float32


def _signed(key: int) -> np.ndarray:
    return np.array([key], np.uint64).astype(np.int64)


def _made(
    device: str, draw: Draw, shape: tuple[int, ...], kind: int, scale: float, shift: float, dtype: np.dtype
) -> DeviceArray:
    runtime = runtime_of(device)
    out, key = runtime.empty(shape, dtype), _signed(draw())
    cell = runtime.later(key, again=lambda: _signed(draw()))  # each replay of a recording draws a key
    arguments = (out, np.int64(out.size), cell, key[0], np.float32(scale), np.float32(shift))
    made = program("random.cu", KIND=kind, TYPE=type_name(dtype))
    runtime.each(made, "cuda_random", -(-out.size // 256) * 64, arguments)
    return out


def random_array(
    draw: Draw, shape: tuple[int, ...], *, normal: bool, scale: float, shift: float, device: str
) -> DeviceArray:
    """float32 numbers x * scale + shift; x is standard normal, or uniform in [0, 1). `draw` gives a key of 64 bits."""
    return _made(device, draw, shape, _NORMAL if normal else _UNIFORM, scale, shift, np.dtype(np.float32))


def random_factors(
    draw: Draw, shape: tuple[int, ...], dtype: np.dtype, *, least: float, factor: float, device: str
) -> DeviceArray:
    """`factor` where a uniform number of the drawn key is at least `least`, else 0, as a float dtype."""
    return _made(device, draw, shape, _FACTORS, factor, least, dtype)


def drawn(make: Callable[[], np.ndarray], device: str) -> DeviceArray:
    """A small array that main memory draws; each replay of a recording draws anew."""
    return runtime_of(device).table(make(), again=make)


def programs() -> Iterator[Program]:
    """Every kind, factors of every dtype."""
    yield from (program("random.cu", KIND=kind, TYPE="float") for kind in range(3))
    yield from (program("random.cu", KIND=_FACTORS, TYPE=type_name(t)) for t in _OTHERS)
