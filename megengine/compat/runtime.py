"""Functions of MegEngine's interpreter that programs call: scopes, waiting, options. Calls are synchronous here."""

from __future__ import annotations

from typing import Any

from megengine.core import hooks
from megengine.core.errors import MegEngineError, OptionError
from megengine.functional import split
from megengine.utils.dlpack import from_dlpack, to_dlpack

_scopes: list[str] = []


class AsyncError(MegEngineError, RuntimeError):
    """MegEngine's error of a call that fails later. Here the call itself raises errors."""


def push_scope(name: str) -> None:
    """Begin a named part of the computation, for profiles."""
    _scopes.append(name)


def pop_scope(name: str) -> None:
    """End it. Raises OptionError if another one began last."""
    if not _scopes or _scopes[-1] != name:
        last = repr(_scopes[-1]) if _scopes else "none"
        raise OptionError(f"pop_scope: got {name!r}; the scope that began last is {last}")
    _scopes.pop()


def push_scope_with_type(name: str, kind: Any = None) -> None:
    """`push_scope`."""
    push_scope(name)


def pop_scope_with_type(name: str, kind: Any = None) -> None:
    """`pop_scope`."""
    pop_scope(name)


def record_scope(scope: Any, name: str) -> None:
    """Nothing: modules name their own scopes."""


def sync() -> None:
    """Nothing to wait for: values exist when a call returns."""


full_sync = sync


def stop_step() -> None:
    """Nothing: no training step is recorded."""


def add_backward_callback(function: Any) -> None:
    """Refused: callbacks are given to GradManager.attach. Raises OptionError."""
    raise OptionError("add_backward_callback: give callbacks to GradManager.attach(tensors, callbacks)")


def is_tracing_module() -> bool:
    """True while traced_module.trace_module runs."""
    return hooks.active.get() is not None


def get_auto_format_convert() -> bool:
    """False: layouts are chosen by plans."""
    return False


def set_auto_format_convert(flag: bool) -> None:
    """Nothing: layouts are chosen by plans."""


def jit_supported() -> bool:
    """False: there is no compiler of elementwise functions."""
    return False


def set_jit_enabled(flag: bool) -> bool:
    """False: it is never enabled."""
    return False


split_cpp = split
_from_dlpack, _to_dlpack = from_dlpack, to_dlpack
