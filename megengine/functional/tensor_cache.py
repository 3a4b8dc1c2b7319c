"""Tensors of often used numbers, by MegEngine's names; all take `dtype` and `device`."""

from functools import partial

from megengine.functional.helpers import scalar

get_scalar_zero, get_scalar_one, get_scalar_two = (partial(scalar, number) for number in (0, 1, 2))
get_scalar_zero_point_five = partial(scalar, 0.5)

__all__ = ["get_scalar_one", "get_scalar_two", "get_scalar_zero", "get_scalar_zero_point_five"]
