"""Sums that change a tensor in place."""

from __future__ import annotations

from typing import Any

from megengine.core.errors import ArgumentError, brief
from megengine.tensor import Tensor

__all__ = ["_inplace_add_"]


def _inplace_add_(dest: Tensor, delta: Any, alpha: Any, beta: Any) -> Tensor:
    """`dest[...] = dest * alpha + delta * beta`; gives `dest`. Raises ArgumentError unless that is a tensor."""
    if not isinstance(dest, Tensor):
        raise ArgumentError(f"_inplace_add_: dest is {brief(dest)}; expected a tensor")
    dest[...] = dest * alpha + delta * beta
    return dest
