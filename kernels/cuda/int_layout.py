"""Channels-last integer arrays on a GPU: a dense [N,H,W,C] from a dense [N,C,H,W], and back."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_constants import aligned
from megengine.kernels.cuda.sources import Program, program, type_name

_FEW = 8  # rows that one thread turns
_UNSIGNED = {n: np.dtype(f"u{n}") for n in (1, 2, 4)}


def _program(element: np.dtype) -> Program:
    return program("int_layout.cu", ELEMENT=type_name(element))


def turned(x: DeviceArray, images: int, rows: int, columns: int, pitch: int, filling: int = 0) -> DeviceArray:
    """Images [rows, columns] as [columns, pitch], where places from `rows` to `pitch` are the number `filling`."""
    element = _UNSIGNED[x.dtype.itemsize]
    y = x.runtime.empty((images, columns, pitch), x.dtype)
    tiles = -(-columns // 32) * -(-pitch // 32)
    value = np.array(filling, x.dtype).view(element)[()]
    sizes = map(np.int64, (rows, columns, pitch))
    arguments = (x.view(element), y.view(element), *sizes, value, np.int64(images))
    if pitch == 4 and columns % 4 == 0 and aligned(x):
        arguments = (x.view(element), y.view(element), *map(np.int64, (rows, columns)), value, np.int64(images))
        x.runtime.each(_program(element), "cuda_turn_fours", images * columns // 4, arguments)
        return y
    if pitch <= _FEW:
        x.runtime.each(_program(element), "cuda_turn_few", images * columns, arguments)
        return y
    x.runtime.launch(_program(element), "cuda_turn", (tiles, min(images, 65535)), 256, arguments)
    return y


def to_last(x: DeviceArray, pitch: int | None = None, filling: int = 0) -> DeviceArray:
    """[N,C,H,W] -> [N,H,W,pitch], where channels from C to `pitch` are the number `filling`."""
    n, c, *space = x.shape
    pitch = c if pitch is None else pitch
    pixels = math.prod(space)
    if pitch == c and (c == 1 or pixels == 1):
        return x.reshape((n, *space, c))
    return turned(x, n, c, pixels, pitch, filling).reshape((n, *space, pitch))


def to_first(x: DeviceArray) -> DeviceArray:
    """[N,H,W,C] -> [N,C,H,W]."""
    n, *space, c = x.shape
    pixels = math.prod(space)
    if c == 1 or pixels == 1:
        return x.reshape((n, c, *space))
    return turned(x, n, pixels, c, pixels, 0).reshape((n, c, *space))


def wider(x: DeviceArray, pitch: int) -> DeviceArray:
    """[N,H,W,C] with zeros beyond the channels -> [N,H,W,pitch]."""
    element = _UNSIGNED[x.dtype.itemsize]
    y = x.runtime.empty((*x.shape[:-1], pitch), x.dtype)
    sizes = map(np.int64, (x.shape[-1], pitch, y.size))
    x.runtime.each(_program(element), "cuda_widen", y.size, (x.view(element), y.view(element), *sizes))
    return y


def programs() -> Iterator[Program]:
    """Every program that the functions of this file launch."""
    yield from map(_program, _UNSIGNED.values())
