"""Mixed precision under MegEngine's names: convolutions and products in a type of 16 bits, the rest in float32."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from megengine.amp.autocast import DTYPES, autocast
from megengine.amp.convert_format import convert_module_format, convert_tensor_format
from megengine.amp.grad_scaler import GradScaler
from megengine.core.errors import ArgumentError, MissingNameError
from megengine.dispatch import mixed
from megengine.dispatch.refusal import shown
from megengine.ops.common import choice

_DTYPES = {"low_prec_dtype": "float16", "high_prec_dtype": "float32"}  # what `enabled = True` casts to
_OPTIONS = ("enabled", *_DTYPES)


class _Settings(ModuleType):
    """`enabled`, `low_prec_dtype` and `high_prec_dtype` are those of now; setting one counts from there on."""

    @property
    def enabled(self) -> bool:
        """Whether operands are cast."""
        return mixed.casting() is not None

    def __getattr__(self, name: str) -> Any:
        if name in _DTYPES:
            now = mixed.casting()
            return _DTYPES[name] if now is None else getattr(now, name)
        raise MissingNameError(f"module {self.__name__!r} has no attribute {name!r}", name, lambda: dir(self))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _OPTIONS:
            if name[0] != "_" and name not in vars(self) and not isinstance(value, ModuleType):
                raise MissingNameError(f"{self.__name__} has no option {name!r}", name, lambda: _OPTIONS)
            super().__setattr__(name, value)
            return
        if name == "enabled" and not isinstance(value, bool):
            raise ArgumentError(f"{self.__name__}.enabled is {shown(value)}; expected True or False")
        if name != "enabled":
            choice(self.__name__, name, value, DTYPES)
        enabled = value if name == "enabled" else self.enabled
        for option in _DTYPES:
            _DTYPES[option] = str(value if option == name else getattr(self, option))
        mixed.cast_by(mixed.Casting(**_DTYPES) if enabled else None)


sys.modules[__name__].__class__ = _Settings

__all__ = ["GradScaler", "autocast", "convert_module_format", "convert_tensor_format"]
