"""Where: elements of one tensor where a mask is true, else those of another."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.dtype import is_float, storage_of
from megengine.core.errors import DTypeError
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import OnnxRule, QuantRule, Sample, apply, define, public
from megengine.ops.common import BOOL, as_tensor, broadcast_shapes, cast, lift_plain, noise, operands, unbroadcast
from megengine.tensor import Tensor


def _where_infer(mask: TensorSpec, x: TensorSpec, y: TensorSpec) -> TensorSpec:
    if mask.dtype != BOOL:
        raise DTypeError(f"where: mask is {mask.dtype}; expected bool; compare first, as in mask > 0")
    if x.dtype != y.dtype:
        raise DTypeError(f"where: x is {x.dtype}, y is {y.dtype}; expected one dtype")
    return TensorSpec(broadcast_shapes("where", mask.shape, x.shape, y.shape), x.dtype, x.device)


def _where_vjp(ctx: Any, ct: Tensor) -> tuple:
    mask, x, y = ctx.inputs
    zero = Tensor._wrap(np.zeros((), storage_of(ct.dtype)), None, ct.device)
    dx = unbroadcast(apply("where", mask, ct, zero), x.shape)
    dy = unbroadcast(apply("where", mask, zero, ct), y.shape)
    return None, dx, dy


define(
    "where",
    _where_infer,
    lambda mask, x, y: np.where(mask, x, y),
    _where_vjp,
    OnnxRule("Where"),
    lambda: [Sample((np.array([True, False, True]), noise(2, 3), noise(2, 1)))],
    quant=QuantRule("part"),
    lift=lift_plain,
)


def _as_the_other(x: Any, other: Any) -> Any:
    """X in the dtype of the other tensor, where MegEngine chooses among such two in it."""
    if not isinstance(x, Tensor) or not isinstance(other, Tensor) or not isinstance(other.dtype, np.dtype):
        return x
    return cast(x, other.dtype) if x.dtype == BOOL or (other.dtype == np.float16 and not is_float(x.dtype)) else x


@public(home="megengine.functional.tensor", by_spec=True)
def where(mask: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    """X where mask is true, else y; shapes broadcast. A boolean, or an integer beside float16, is cast to the other."""
    a, b = operands("where", _as_the_other(x, y), _as_the_other(y, x))
    return apply("where", as_tensor(mask), a, b)
