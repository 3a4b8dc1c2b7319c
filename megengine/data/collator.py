"""Several items as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine.core.errors import ArgumentError
from megengine.dispatch.refusal import explains, shown


class Collator:
    """Stacks items: arrays and numbers along a new first axis; dicts, lists and tuples (as lists) part by part."""

    @explains
    def apply(self, inputs: Sequence[Any]) -> Any:
        """Items of equal structure and shapes -> a batch of arrays."""
        if isinstance(inputs, (str, bytes)) or not len(inputs):
            raise ArgumentError(f"Collator: inputs is {shown(inputs)}; expected one item or more, in a list")
        first = inputs[0]
        if isinstance(first, dict):
            return {key: self.apply([item[key] for item in inputs]) for key in first}
        if isinstance(first, (tuple, list)):
            columns = [self.apply(parts) for parts in zip(*inputs, strict=True)]
            return type(first)(*columns) if hasattr(first, "_fields") else columns
        if isinstance(first, (str, bytes)):
            return inputs if isinstance(inputs, tuple) else list(inputs)
        arrays = [np.asarray(item) for item in inputs]
        if arrays[0].dtype == object:
            raise ArgumentError(f"Collator: an item holds a {type(first).__name__}; expected arrays, numbers or text")
        return np.stack(arrays)


__all__ = ["Collator"]
