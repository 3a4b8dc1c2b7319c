"""Quantization parameters, and fake quantization as functions, by MegEngine's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, TypeVar

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import ArgumentError, OptionError
from megengine.core.tensor.dtype import QuantDtypeMeta, create_quantized_dtype, meta_of
from megengine.tensor import Tensor

_HOME = "megengine.quantization.utils"
_Class = TypeVar("_Class", bound=type)


def at(module: str) -> Callable[[_Class], _Class]:
    """Decorator of a class that MegEngine has in `module`: files store that path, and a face there exports it."""

    def place(cls: _Class) -> _Class:
        cls.__module__ = module
        return cls

    return place


@at(_HOME)
class QuantMode(Enum):
    """Whether zero is in the middle of the range. The names are spelt as MegEngine spells them."""

    SYMMERTIC = 1
    ASYMMERTIC = 2


@at(_HOME)
class QParams:
    """Scale and zero point of a tensor, with the integer type they are for.

    Args:
        mode: symmetric or not.
        dtype_meta: the integer type.
        scale: 0-d float32 tensor, or one entry per output channel; None while unknown.
        zero_point: 0-d float32 tensor, None in symmetric mode.

    Example:
        >>> create_qparams(dtype_meta="qint8", scale=Tensor(0.5)).dtype.scale
        0.5
    """

    __slots__ = ("mode", "dtype_meta", "scale", "zero_point")  # noqa: RUF023 (the order in which MegEngine prints them)

    def __init__(
        self, mode: QuantMode, dtype_meta: QuantDtypeMeta | None, scale: Tensor | None, zero_point: Tensor | None
    ) -> None:
        self.mode, self.dtype_meta = mode, dtype_meta
        self.scale, self.zero_point = scale, zero_point

    def update(self, qparams: QParams) -> None:
        """Take over the values of others."""
        for name in self._names():
            setattr(self, name, getattr(qparams, name))

    @property
    def dtype(self) -> QuantizedDType:
        """The frozen quantized dtype. Raises OptionError while the scale is not known."""
        if self.scale is None or self.dtype_meta is None:
            raise OptionError("qparams: they have no scale yet; observe data, or set them with set_qparams")
        return create_quantized_dtype(self.dtype_meta, self.scale.numpy(), self.zero)

    @property
    def zero(self) -> int | None:
        """The zero point as a number. In symmetric mode one that was given does not count, as in MegEngine."""
        if self.mode is QuantMode.SYMMERTIC:
            return 0
        return None if self.zero_point is None else int(np.asarray(self.zero_point.numpy()).reshape(-1)[0])

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(name for c in reversed(cls.__mro__) for name in getattr(c, "__slots__", ()))

    def __setstate__(self, state: Any) -> None:
        _, values = state
        for name in self._names():
            setattr(self, name, values.get(name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QParams):
            return NotImplemented
        return all(_same(getattr(self, n), getattr(other, n, None)) for n in self._names())

    __hash__: ClassVar[None]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)}' for n in self._names())})"


@at(_HOME)
class LSQParams(QParams):
    """QParams with the factor by which LSQ weighs the gradient of the scale."""

    __slots__ = ("grad_scale",)

    def __init__(
        self,
        mode: QuantMode,
        dtype_meta: QuantDtypeMeta | None,
        scale: Tensor | None,
        zero_point: Tensor | None,
        grad_scale: Tensor | None,
    ) -> None:
        super().__init__(mode, dtype_meta, scale, zero_point)
        self.grad_scale = grad_scale


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return bool(np.array_equal(a.numpy(), b.numpy()))
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


@at(_HOME)
class QParamsModuleMixin(ABC):
    """A module that knows quantization parameters."""

    @abstractmethod
    def get_qparams(self) -> QParams:
        """Scale and zero point."""

    def get_quantized_dtype(self) -> QuantizedDType:
        """The dtype of tensors quantized with them."""
        return self.get_qparams().dtype


def create_qparams(
    mode: QuantMode = QuantMode.SYMMERTIC,
    dtype_meta: str | QuantDtypeMeta | None = None,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
) -> QParams:
    """QParams of a type given by name; numbers become tensors.

    Raises:
        ArgumentError: mode is no QuantMode.
    """
    if not isinstance(mode, QuantMode):
        raise ArgumentError(f"create_qparams: mode is {mode!r}; expected one of {[str(m) for m in QuantMode]}")
    meta = None if dtype_meta is None else meta_of(dtype_meta)
    scale, zero_point = (v if v is None or isinstance(v, Tensor) else Tensor(v) for v in (scale, zero_point))
    return QParams(mode, meta, scale, zero_point)
