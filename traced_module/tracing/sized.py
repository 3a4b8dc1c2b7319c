"""Tensors of lengths that values tell, such as `y.shape` behind `y = x[mask]`: they have no value, but formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import MegEngineError
from megengine.core.sizes import OpenSize
from megengine.core.spec import TensorSpec
from megengine.dispatch import Interposer, Op, infer
from megengine.tensor import Tensor


class Sized(Tensor):
    """A tensor without a value whose elements are known as sizes: reshapes get those; others ask for the value."""

    __slots__ = ("sizes",)
    sizes: np.ndarray

    @classmethod
    def of(cls, sizes: Any, spec: TensorSpec) -> Sized:
        made = cls.__new__(cls)
        made._value, made._thunk = None, None
        made._spec, made._dtype, made._device = spec, spec.dtype, spec.device
        made.sizes = np.asarray(sizes, object)
        return made

    def _sizes(self) -> Any:
        return self.sizes.tolist()


def sized_result(op: Op, tensors: Sequence[Tensor], attrs: dict[str, Any], spec: Any) -> Sized | None:
    """What an op gives for tensors of which one is of sizes, if the op computes with integers as Python does."""
    if not any(isinstance(t, Sized) for t in tensors):
        return None
    if not isinstance(spec, TensorSpec) or getattr(spec.dtype, "kind", "") != "i":
        return None
    if not all(isinstance(t, Sized) or t._value is not None for t in tensors):
        return None
    arrays = [t.sizes if isinstance(t, Sized) else t.numpy().astype(object) for t in tensors]
    try:
        found = np.asarray(op.reference(*arrays, **attrs), object)
    except (TypeError, ValueError, AttributeError, MegEngineError):  # it wants numbers of one kind
        return None
    whole = all(type(n) in (int, OpenSize) for n in found.flat)
    return Sized.of(found, spec) if whole and found.shape == spec.shape else None


class Sizing(Interposer):
    """Arithmetic on sizes gives sizes; what is no size then is a tensor without a value."""

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        if all(t._value is not None for t in tensors):
            return proceed()
        spec = infer(op, [t.spec for t in tensors], attrs)
        if (known := sized_result(op, tensors, attrs, spec)) is not None:
            return known
        return Tensor._deferred(spec) if isinstance(spec, TensorSpec) else tuple(map(Tensor._deferred, spec))
