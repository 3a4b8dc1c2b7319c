"""The decorator that starts training in many processes: here, in this one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from megengine.core.errors import DeviceError

__all__ = ["launcher"]


def launcher(function: Callable[..., Any] | None = None, *, n_gpus: int | None = None, **options: Any) -> Any:
    """Decorator: the function runs in this process. Raises DeviceError at the call for n_gpus above 1."""
    if function is None:
        return functools.partial(launcher, n_gpus=n_gpus, **options)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if n_gpus is not None and n_gpus > 1:
            raise DeviceError(f"launcher: n_gpus={n_gpus}; training runs in one process here; leave n_gpus out")
        return function(*args, **kwargs)

    return run
