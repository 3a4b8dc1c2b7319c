"""MegEngine's cache of measured kernels. Kernels are chosen without measuring here, so it only holds what is put."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

__all__ = ["PersistentCacheOnServer", "main"]


class PersistentCacheOnServer:
    """Values by category and key, for the life of the process; `reg`, `config` and `flush` have nothing to do."""

    def __init__(self) -> None:
        self._values: dict[tuple[Any, Any], Any] = {}
        self.config: Any = None

    def put(self, arg0: Any, arg1: Any, arg2: Any) -> None:
        """Keep the value `arg2` of the key `arg1` in the category `arg0`."""
        self._values[arg0, arg1] = arg2

    def get(self, arg0: Any, arg1: Any) -> Any:
        """The value of the key `arg1` in the category `arg0`; None if there is none."""
        return self._values.get((arg0, arg1))

    def add_config(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: there is one way to keep values."""

    def reg(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: no kernel asks for measurements."""

    def flush(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: values are not written."""

    def clean(self, *args: Any, **kwargs: Any) -> None:
        """Forget all values."""
        self._values.clear()

    def get_cache_dir(self) -> str:
        """The folder that MGE_CACHE_DIR names, or MegEngine's own; nothing is written there."""
        return os.environ.get("MGE_CACHE_DIR") or os.path.expanduser("~/.cache/megengine/persistent_cache")

    def get_cache_file(self, cache_dir: str) -> str:
        """The file that MegEngine would write in a folder."""
        return os.path.join(cache_dir, "cache.bin")

    @contextlib.contextmanager
    def lock_cache_file(self, cache_dir: str) -> Iterator[None]:
        """Nothing: no file is shared."""
        yield

    def get_redis_config(self) -> None:
        """None: there is no server."""


def main() -> None:
    """MegEngine's command that cleans its cache: there is none here."""
