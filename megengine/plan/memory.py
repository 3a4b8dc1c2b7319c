"""One arena for all intermediate values: values that live at the same time do not overlap."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

ALIGN = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Bytes of a value and the first and last step that touches it."""

    size: int
    first: int
    last: int


def aligned(size: int) -> int:
    """Size rounded up to the alignment of the arena."""
    return (size + ALIGN - 1) // ALIGN * ALIGN


def place(lifetimes: Mapping[int, Lifetime]) -> tuple[dict[int, int], int]:
    """Offset of every value and the size of the arena: largest first, each at the lowest free place."""
    order = sorted(lifetimes, key=lambda k: (-lifetimes[k].size, lifetimes[k].first))
    first, last = (np.array([getattr(lifetimes[k], end) for k in order], np.int64) for end in ("first", "last"))
    begins, ends, total = np.zeros_like(first), np.zeros_like(first), 0
    for i, key in enumerate(order):
        size, at = aligned(lifetimes[key].size), 0
        busy = np.flatnonzero((last[:i] >= first[i]) & (first[:i] <= last[i]))
        for begin, end in sorted(zip(begins[busy].tolist(), ends[busy].tolist(), strict=True)):
            if at + size <= begin:
                break
            at = max(at, end)
        begins[i], ends[i] = at, at + size
        total = max(total, at + size)
    return dict(zip(order, begins.tolist(), strict=True)), total
