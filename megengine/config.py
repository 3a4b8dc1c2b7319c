"""Options of MegEngine's executor: they can be read and set. They have no effect here, where calls are synchronous and
kernels deterministic: setting one warns once. Names that do not exist are refused.
"""

from __future__ import annotations

import sys

from megengine.core.effectless import Settings

async_level = 2
benchmark_kernel = False
benchmark_with_subprocess = False
deterministic_kernel = False
disable_memory_forwarding = False
enable_drop = False

_WHY = "calls are synchronous, and the first usable kernel runs, which is deterministic"
sys.modules[__name__].__class__ = Settings
