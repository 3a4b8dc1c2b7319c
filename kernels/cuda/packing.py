"""Channels moved to the last axis for kernels that read 16 bytes at once, with zeros up to a multiple behind them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import Program, program

_SIDE = 32  # of a tile of channels.cu
_MOST = 65535  # of a grid along y and z


def _program(itemsize: int) -> Program:
    return program("channels.cu", TYPE="unsigned short" if itemsize == 2 else "unsigned")


def programs() -> Iterator[Program]:
    """All variants."""
    yield from (_program(2), _program(4))


@dataclass(frozen=True, slots=True)
class Packing:
    """[rows, channels, places] becomes [rows, places, padded], or [rows, places, groups, channels] of `groups` that.

    With groups the result is [rows, groups, places, padded].
    """

    rows: int
    channels: int
    padded: int
    places: int
    groups: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.rows, max(self.groups, 1), self.places, self.padded

    def of(self, array: DeviceArray) -> DeviceArray:
        """The values of an array, packed."""
        runtime = array.runtime
        out = runtime.empty(self.shape, array.dtype)
        if not out.size:
            return out
        bits = np.dtype(f"u{array.dtype.itemsize}")
        source = _program(bits.itemsize)
        sizes = (np.int64(self.rows), np.int32(self.channels), np.int32(self.padded), np.int64(self.places))
        given = (array.view(bits), out.view(bits), *sizes)
        if self.groups:
            runtime.each(source, "channels_padded", out.size, (*given, np.int32(self.groups)))
        else:
            tiles = math.prod(-(-n // _SIDE) for n in (self.padded, self.places))
            across = min(self.rows, _MOST)
            runtime.launch(source, "channels_last", (tiles, across, min(-(-self.rows // across), _MOST)), 256, given)
        return out


_packed: weakref.WeakKeyDictionary[DeviceArray, dict[Packing, DeviceArray]] = weakref.WeakKeyDictionary()


def kept(packing: Packing, array: DeviceArray) -> DeviceArray:
    """The array packed; it is made once while the array lives: for weights, which many calls take."""
    found = _packed.setdefault(array, {})
    if packing not in found:
        found[packing] = packing.of(array)
    return found[packing]
