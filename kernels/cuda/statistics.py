"""What calibration counts, on a GPU: extrema and sums of the channels of every sample, and histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import Program, program

MOST_BINS = 4096  # of a histogram
_BLOCK, _BLOCKS, _NARROW, _EACH = 256, 528, 8, 16
_DOWN = 65535  # blocks along y, at most


def spans(x: DeviceArray, samples: int, axis: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Float32 smallest and largest values and float64 sums of every channel of every sample, [samples, channels].

    x is float32 with at least one element and the samples along axis 0; `axis` counts channels, None for one channel.
    An end is NaN or infinite if a value is.
    """
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
    return lo.numpy() + 0, hi.numpy() + 0, sums.numpy()


def count(x: DeviceArray, exponent: int, first: int, counts: np.ndarray) -> None:
    """Add the values of float32 x to int64 counts of bins of width 2**exponent, of which bin `first` is counted first.

    All values lie in the bins, whose numbers are below 2**24; there are at most 4096.
    """
    seen = x.runtime.zeros(counts.shape, np.int32)
    blocks = max(1, min(-(-x.size // (_BLOCK * _EACH)), _BLOCKS))
    numbers = (np.float64(math.ldexp(1.0, -exponent)), np.int32(first), np.int32(len(counts)), np.int64(x.size))
    x.runtime.launch(_program(), "count", blocks, _BLOCK, (x, seen, *numbers))
    counts += seen.numpy()


def _program() -> Program:
    return program("statistics.cu")


def programs() -> Iterator[Program]:
    """The one program."""
    yield _program()
