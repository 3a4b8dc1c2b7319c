"""Mixed precision: which operands are cast while `megengine.amp` is on, and which dtype functions take."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from megengine.core.dtype import DType, as_dtype
from megengine.dispatch.apply import Interposer, active_interposers, apply, begin, end, hidden
from megengine.dispatch.record import Op
from megengine.tensor import Tensor

_FLOAT32 = np.dtype("float32")


class Casting(Interposer):
    """Casts operands: of layers from float32 to `low`, of functions that lose digits from `low` to `high`."""

    first = True

    def __init__(self, low_prec_dtype: str, high_prec_dtype: str) -> None:
        self.low_prec_dtype, self.high_prec_dtype = low_prec_dtype, high_prec_dtype
        self.low, self.high = as_dtype(low_prec_dtype), as_dtype(high_prec_dtype)

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Any) -> Any:
        if op.weighted:
            return proceed(tuple(map(self.lowered, tensors)))
        if op.normalizes:
            return proceed((self.lowered(tensors[0]), *tensors[1:]))
        if op.loses_digits:
            return proceed(tuple(map(self.raised, tensors)))
        return proceed()

    def lowered(self, x: Tensor) -> Tensor:
        """A float32 tensor in the lower precision; another one itself."""
        return _cast(x, _FLOAT32, self.low)

    def lowered_beside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """In the lower precision if each is of it or float32; else as they are, so that promotion keeps digits."""
        plain = all(x.dtype in (_FLOAT32, self.low) for x in tensors)
        return tuple(map(self.lowered, tensors)) if plain else tensors

    def raised(self, x: Tensor) -> Tensor:
        """A tensor of the lower precision in the higher one; another one itself."""
        return _cast(x, self.low, self.high)


def _cast(x: Tensor, old: DType, new: DType) -> Tensor:
    return x if x.dtype != old or old == new else apply("cast", x, dtype=new)


def casting() -> Casting | None:
    """What casts operands now, if anything does."""
    return next((one for one in active_interposers() if isinstance(one, Casting)), None)


def cast_by(new: Casting | None) -> None:
    """From now on operands are cast by `new`, or not at all."""
    while (old := casting()) is not None:
        end(old)
    if new is not None:
        begin(new)


def kept() -> AbstractContextManager[None]:
    """A context in which operands keep their precision: for layers that mixed precision leaves alone."""
    return hidden(lambda one: isinstance(one, Casting))


def lowered(x: Tensor) -> Tensor:
    """The tensor as a layer takes it."""
    now = casting()
    return x if now is None else now.lowered(x)


def lowered_beside(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Operands of a layer before they are promoted to one dtype.

    Float32 beside the lower precision is lowered: promotion would raise an activation that the layer lowers again.
    """
    now = casting()
    return tensors if now is None else now.lowered_beside(tensors)


def raised(x: Tensor) -> Tensor:
    """The tensor as a function takes it that loses digits in the lower precision."""
    now = casting()
    return x if now is None else now.raised(x)
