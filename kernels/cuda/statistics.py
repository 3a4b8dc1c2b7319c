"""What calibration counts, on a GPU: extrema and exact means of channels, extrema of samples, and histograms.

All of a batch is counted behind each other into one `Room`, which is copied once; nothing waits before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import Runtime
from megengine.kernels.cuda.sources import Program, program

MOST_BINS = 4096  # of a histogram
PARTS = 9  # of 32 bits, of an exact sum
_BLOCK, _BLOCKS, _NARROW, _EACH = 256, 528, 8, 16
_DOWN = 65535  # blocks along y, at most
_ALIGNED = 8  # bytes
_CHUNK = 4 << 20  # bytes of a room that are taken at once


class Room:
    """Memory of a device, zeros, of which arrays are taken, and that is copied as a whole."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._chunks: list[DeviceArray] = []
        self._used = 0  # bytes of the last chunk

    def take(self, shape: tuple[int, ...], dtype: type) -> Slot:
        """An array of zeros, whose values `copied` will find."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if not self._chunks or self._used + size > self._chunks[-1].size:
            self._chunks.append(self._runtime.zeros((max(size, _CHUNK),), np.uint8))
            self._used = 0
        chunk, first = self._chunks[-1], self._used
        self._used += -(-size // _ALIGNED) * _ALIGNED
        array = DeviceArray(self._runtime, chunk.owner, chunk.address + first, shape, np.dtype(dtype))
        return Slot(array, len(self._chunks) - 1, first)

    def copy(self) -> Callable[[], list[np.ndarray]]:
        """Begin to copy all to main memory; what is returned waits for it, and gives what `Slot.of` reads."""
        waiting = [self._runtime.download_later(chunk) for chunk in self._chunks]
        return lambda: [one() for one in waiting]


@dataclass(frozen=True, slots=True)
class Slot:
    """An array of a room."""

    array: DeviceArray
    chunk: int
    first: int

    def of(self, copies: list[np.ndarray]) -> np.ndarray:
        """Its values in what was copied."""
        one = self.array
        return copies[self.chunk][self.first : self.first + one.nbytes].view(one.dtype).reshape(one.shape)


@dataclass(frozen=True, slots=True)
class Measured:
    """Where the numbers of one value lie.

    `ends` are float32 [samples, 2], smallest and largest values, NaN or infinite if a value is; `lows` and `highs`
    those of channels; `parts` int64 [9, channels], the exact sum of the samples' means, each rounded to float32, in
    units of 2**-149, the lowest 32 bits first, or None; `used` the exponent, the first bin and the number of the bins
    that `counts` holds.
    """

    samples: int
    size: int
    by_channel: bool
    ends: Slot
    lows: Slot
    highs: Slot
    parts: Slot | None
    used: Slot
    counts: Slot


def measure(x: DeviceArray, samples: int, axis: int | None, room: Room, *, bins: int, averaged: bool) -> Measured:
    """Count a value, float32 with at least one element and the samples along axis 0; nothing waits.

    `axis` counts channels, None for one channel; `bins` are those of the histogram, at most 4096.
    """
    lo, hi, sums = _spans(x, samples, axis)
    channels = lo.shape[1]
    ends, lows, highs = (room.take(s, np.float32) for s in ((samples, 2), (channels,), (channels,)))
    parts = room.take((PARTS, channels), np.int64) if averaged else None
    given = (lo, hi, sums, np.float64(x.size // sums.size), ends.array, lows.array, highs.array)
    given += (None if parts is None else parts.array, np.int64(samples), np.int64(channels))
    x.runtime.launch(_program(), "join", samples + -(-channels // _BLOCK), _BLOCK, given)
    used, counts = room.take((3,), np.int32), room.take((bins,), np.int32)
    blocks = max(1, min(-(-x.size // (_BLOCK * _EACH)), _BLOCKS))
    given = (x, ends.array, used.array, counts.array, np.int32(bins), np.int64(samples), np.int64(x.size))
    x.runtime.launch(_program(), "count_all", blocks, _BLOCK, given)
    return Measured(samples, x.size, axis is not None, ends, lows, highs, parts, used, counts)


def _spans(x: DeviceArray, samples: int, axis: int | None) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Float32 smallest and largest values and float64 sums of every channel of every sample, [samples, channels]."""
    runtime = x.runtime
    channels = 1 if axis is None else x.shape[axis]
    before = x.size // samples if axis is None else math.prod(x.shape[1:axis])
    behind = x.size // (samples * before * channels)
    lo, hi = (runtime.empty((samples, channels), np.float32) for _ in range(2))
    sums = runtime.empty((samples, channels), np.float64)
    arguments = (x, lo, hi, sums, *map(np.int64, (before, channels, behind)))
    if behind < _NARROW and channels >= _BLOCK:
        grid = (-(-channels // _BLOCK), min(samples, _DOWN))
        runtime.launch(_program(), "columns", grid, _BLOCK, (*arguments, np.int64(samples)))
    else:
        runtime.launch(_program(), "spans", samples * channels, _BLOCK, arguments)
    return lo, hi, sums


def _program() -> Program:
    return program("statistics.cu")


def programs() -> Iterator[Program]:
    """The one program."""
    yield _program()
