"""Types of arguments that public functions take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from megengine.core.dtype import QuantizedDType


class Shaped(Protocol):
    """What has a shape and a dtype: a tensor, an array, a node of a graph that is edited."""

    @property
    def shape(self) -> Any:
        """Lengths of the axes."""

    @property
    def dtype(self) -> Any:
        """Element type."""


TensorLike: TypeAlias = Shaped | complex | Sequence[Any]
DTypeLike: TypeAlias = str | type | np.dtype | QuantizedDType
