"""Values that every layer shares: dtypes, specs, errors, pytrees, hooks.

The faces at MegEngine's paths (`core._imperative_rt`, `core.ops`, ...) are imported when they are first named.
"""

from typing import Any

from megengine.core import absent, late
from megengine.core.options import get_option, set_option

__all__ = ["get_option", "set_option"]


def __getattr__(name: str) -> Any:
    module = late.part(__name__, name, private=True)
    if module is None:
        raise absent.missing(__name__, name)
    return module
