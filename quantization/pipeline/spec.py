"""What `annotate` writes on an edge: frozen values, from which `freeze` makes quantized dtypes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.quantization.ranges import RangeMethod


@dataclass(frozen=True, slots=True)
class Plain:
    """The edge gets a scale of its own from its statistics.

    A kind that is `bounded` has a range that ends on purpose, short of values that were seen. One that is `derived`
    takes its end from the ranges of other edges, so no edge may share its scale with these.
    """

    bounded: ClassVar[bool] = False
    derived: ClassVar[bool] = False
    scheme: str
    method: RangeMethod
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Argument(Plain):
    """Only a function of one value reads the edge: ends beyond which the function changes no more are left out.

    Args:
        function: of x [n, places] for as many places of an axis as have functions of their own, 1 for the same at all.
        places: how many these are.
    """

    bounded: ClassVar[bool] = True
    function: Callable[[np.ndarray], np.ndarray] = field(default=lambda x: x, compare=False, repr=False)
    places: int = 1


@dataclass(frozen=True, slots=True)
class Masked(Plain):
    """Scores behind a mask, which a softmax reads: what is far below the smallest score counts as nothing there.

    Args:
        scores: the computed values that the mask joins; their ends bound the range.
        computed: those of them that layers, products or tables give, which are no masks.
        largest: of the constants that are added to them.
        room: how far below the smallest score values are kept apart.
        apart: the scores again, where sums among them are taken apart: names, and the ends of constants.
    """

    bounded: ClassVar[bool] = True
    derived: ClassVar[bool] = True
    scores: tuple[str, ...] = ()
    computed: frozenset[str] = frozenset()
    largest: float = 0.0
    room: float = 0.0
    apart: tuple[str | tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Addend(Plain):
    """A value, such as a computed mask, that only sums of masked scores read: what takes them below their ranges is
    left out.

    Args:
        sums: each sum and its other operand; of a constant, the largest value.
    """

    bounded: ClassVar[bool] = True
    derived: ClassVar[bool] = True
    sums: tuple[tuple[str, str | float], ...] = ()


@dataclass(frozen=True, slots=True)
class JoinedScores(Plain):
    """Masked scores joined with others, which a softmax reads: no smaller than the ranges of what is joined.

    Args:
        parts: the computed values.
        least: the smallest constant among the others.
    """

    bounded: ClassVar[bool] = True
    derived: ClassVar[bool] = True
    parts: tuple[str, ...] = ()
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Mask:
    """A constant that masks scores: no smaller than what takes the largest score as far below the smallest."""

    scores: str
    scheme: str
    room: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Shared:
    """The edge takes the scale of another edge: nothing is rounded between them."""

    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The edge has a known range (a table's rows, sigmoid where the target wants it), whatever the data says."""

    dtype: QuantizedDType
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Known(Fixed):
    """The edge has a known range, but for data that spans less than half of it: such data has its own."""

    scheme: str = ""
    method: RangeMethod = field(default_factory=RangeMethod)


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant quantized from its own values; of `group` values along the sum each has a scale, if not 0."""

    axis: int | None
    method: str
    reason: str = ""
    scheme: str = "weight"
    group: int = 0


QSpec = Plain | Shared | Fixed | Weight | Mask
