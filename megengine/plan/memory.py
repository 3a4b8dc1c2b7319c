"""One arena for all intermediate values: values that live at the same time do not overlap."""

from collections.abc import Mapping
from dataclasses import dataclass

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
    offsets: dict[int, int] = {}
    total = 0
    for key in sorted(lifetimes, key=lambda k: (-lifetimes[k].size, lifetimes[k].first)):
        mine = lifetimes[key]
        busy = sorted(
            (offsets[k], offsets[k] + aligned(other.size))
            for k, other in ((k, lifetimes[k]) for k in offsets)
            if not (other.last < mine.first or other.first > mine.last)
        )
        at = 0
        for begin, end in busy:
            if at + aligned(mine.size) <= begin:
                break
            at = max(at, end)
        offsets[key] = at
        total = max(total, at + aligned(mine.size))
    return offsets, total
