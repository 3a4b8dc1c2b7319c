"""What `annotate` writes on an edge: frozen values, from which `freeze` makes quantized dtypes."""

from dataclasses import dataclass

from megengine.core.dtype import QuantizedDType
from megengine.quantization.ranges import RangeMethod


@dataclass(frozen=True, slots=True)
class Plain:
    """The edge gets a scale of its own from its statistics."""

    scheme: str
    method: RangeMethod
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Shared:
    """The edge takes the scale of another edge: nothing is rounded between them."""

    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The edge has a known range (sigmoid, softmax), whatever the data says."""

    dtype: QuantizedDType
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant quantized from its own values; of `group` values along the sum each has a scale, if not 0."""

    axis: int | None
    method: str
    reason: str = ""
    scheme: str = "weight"
    group: int = 0


QSpec = Plain | Shared | Fixed | Weight
