"""Several items as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Collator:
    """Stacks items: arrays and numbers along a new first axis, tuples and dicts part by part."""

    def apply(self, inputs: Sequence[Any]) -> Any:
        """Items of equal structure and shapes -> a batch of arrays."""
        first = inputs[0]
        if isinstance(first, dict):
            return {key: self.apply([item[key] for item in inputs]) for key in first}
        if isinstance(first, (tuple, list)):
            return type(first)(self.apply(parts) for parts in zip(*inputs, strict=True))
        if isinstance(first, (str, bytes)):
            return list(inputs)
        return np.stack([np.asarray(item) for item in inputs])


__all__ = ["Collator"]
