"""Values that every layer shares: dtypes, specs, errors, pytrees, hooks.

MegEngine keeps other things at this path (`core._imperative_rt`, `core.ops`, ...): faces, imported when they are named.
"""

from typing import Any

from megengine.core import absent, late
from megengine.core.options import get_option, set_option

__all__ = ["get_option", "set_option"]


def __getattr__(name: str) -> Any:
    found = late.part(__name__, name, private=True)
    if found is None:
        raise absent.missing(__name__, name)
    return found
