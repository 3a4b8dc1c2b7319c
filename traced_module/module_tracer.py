"""MegEngine's path of its tracer: which layers are one call, and whether a module is being traced."""

from __future__ import annotations

from typing import Any

from megengine.core import absent, hooks
from megengine.dispatch import public_functions
from megengine.module import Module
from megengine.traced_module.tracing.calls import builtin_modules, is_leaf_module
from megengine.traced_module.tracing.entry import register_as_builtin

BUILTIN_ARRAY_METHOD = sorted({name for record in public_functions.values() for name in record.methods})
BUILTIN_TENSOR_WRAP_METHOD = ["T", "to", "size", "shape", "detach", "device", "dtype", "grad", "item", "ndim", "numpy"]


def active_module_tracer() -> Any:
    """What listens while a module is traced; None outside."""
    return hooks.active.get()


def get_tensor_wrapable_method() -> list[str]:
    """Names of methods of tensors that graphs record."""
    return BUILTIN_TENSOR_WRAP_METHOD + BUILTIN_ARRAY_METHOD


class module_tracer:  # noqa: N801 (MegEngine's name)
    """Which classes of modules are recorded as one call."""

    _opaque_types = builtin_modules

    @classmethod
    def register_as_builtin(cls, mod: type[Module]) -> None:
        """`megengine.traced_module.register_as_builtin`."""
        register_as_builtin(mod)

    @classmethod
    def is_builtin(cls, mod: Module) -> bool:
        """True for a layer of this package or of a registered class."""
        return is_leaf_module(mod)


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
