"""Every public function, derived from the op records."""

from typing import Any

from megengine.core import absent, late
from megengine.dispatch import public_functions as _public_functions
from megengine.functional import elemwise, loss, math, metric, nn, tensor, vision

_MODULES = (elemwise, loss, math, metric, nn, tensor, vision)
for _module in _MODULES:
    globals().update({name: getattr(_module, name) for name in _module.__all__})
__all__ = sorted({name for module in _MODULES for name in module.__all__})
del _module


def __getattr__(name: str) -> Any:
    """A part that was not named before, or a function that was declared after this module was imported."""
    part = late.part(__name__, name)
    if part is not None:
        return part
    for record in list(_public_functions.values()):
        for module in _MODULES:
            if record.name == name and record.home == module.__name__:
                return getattr(module, name)
    known = {r.name for r in _public_functions.values() if r.home.startswith(__name__)}
    raise absent.missing(__name__, name, lambda: known)
