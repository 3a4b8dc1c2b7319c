"""Options of MegEngine's executor: they can be read and set, and have no effect here, where calls are synchronous and
kernels deterministic. Names that do not exist are refused.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from megengine.core.errors import MissingNameError

async_level = 2
benchmark_kernel = False
benchmark_with_subprocess = False
deterministic_kernel = False
disable_memory_forwarding = False
enable_drop = False
_OPTIONS = [
    name for name in dir() if name.islower() and not name.startswith("_") and name not in ("annotations", "sys")
]


class _Options(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in _OPTIONS:
            raise MissingNameError(f"megengine.config has no option {name!r}", name, lambda: _OPTIONS)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Options
