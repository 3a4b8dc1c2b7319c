"""Tensors of often used numbers, by MegEngine's names."""

from __future__ import annotations

from typing import Any

from megengine.functional.helpers import scalar
from megengine.tensor import Tensor


def get_scalar_zero(dtype: Any = None, device: str | None = None) -> Tensor:
    """The number 0."""
    return scalar(0, dtype, device)


def get_scalar_one(dtype: Any = None, device: str | None = None) -> Tensor:
    """The number 1."""
    return scalar(1, dtype, device)


def get_scalar_two(dtype: Any = None, device: str | None = None) -> Tensor:
    """The number 2."""
    return scalar(2, dtype, device)


def get_scalar_zero_point_five(dtype: Any = None, device: str | None = None) -> Tensor:
    """The number 0.5."""
    return scalar(0.5, dtype, device)


__all__ = ["get_scalar_one", "get_scalar_two", "get_scalar_zero", "get_scalar_zero_point_five"]
