"""MegEngine's path of the settings of mixed precision: those of `megengine.amp`."""

from typing import Any

from megengine import amp
from megengine.core import absent


def __getattr__(name: str) -> Any:
    if name not in ("enabled", "low_prec_dtype", "high_prec_dtype"):
        raise absent.missing(__name__, name)
    return getattr(amp, name)
